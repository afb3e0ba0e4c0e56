"""Settings as frozen dataclasses. Knows keys and values, not what they mean.

A key that does not exist is an error that suggests the right one; nothing is ignored in silence.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from lrurec.errors import SettingsError

T = TypeVar("T")


def unknown(kind: str, given: str, known: Iterable[str]) -> SettingsError:
    """The error for a name nobody knows, with the nearest known one.

    >>> str(unknown("key", "min_lenght", ["min_length", "seed"]))
    "unknown key 'min_lenght'; did you mean 'min_length'?"
    """
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return SettingsError(f"unknown {kind} '{given}'; {hint}")


def from_mapping(cls: type[T], values: Mapping[str, Any], what: str = "key") -> T:
    """Build the dataclass `cls` from a mapping; an unknown key is an error."""
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise unknown(what, key, names)
    return cls(**values)


def differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first key that both nested mappings have, with different values; empty if there is none.

    >>> differs({"model": {"width": 64}, "old": 1}, {"model": {"width": 32, "new": 2}})
    'model.width'
    """
    for key in (k for k in one if k in other):
        a, b = one[key], other[key]
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if inside := differs(a, b):
                return f"{key}.{inside}"
        elif a != b:
            return key
    return ""
