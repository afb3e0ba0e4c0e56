"""Python literals of dicts, read safely and fast. Knows literals, not what they mean.

Nothing is ever evaluated: a line is a flat dict by its look, taken apart by a pattern, or goes to `ast.literal_eval`.
"""

import ast
import re
from collections.abc import Collection

_TEXT = r"""u?(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")"""
_VALUE = rf"(?:{_TEXT}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|True|False|None)"
_FLAT = re.compile(rf"\{{{_TEXT}: {_VALUE}(?:, {_TEXT}: {_VALUE})*\}}")
_PAIR = re.compile(rf"({_TEXT}): ({_VALUE})")


def literal(line: str, wanted: Collection[str]) -> object:
    """`ast.literal_eval`, but of a flat dict only the wanted values are parsed."""
    if _FLAT.fullmatch(line) is None:
        return ast.literal_eval(line)
    pairs = ((_token(key), value) for key, value in _PAIR.findall(line))
    return {key: _token(value) for key, value in pairs if key in wanted}


def _token(text: str) -> object:
    if text[-1] in "'\"" and "\\" not in text:
        return text[2:-1] if text[0] == "u" else text[1:-1]
    return ast.literal_eval(text)
