"""Optional parts: an error that says what to install instead of a traceback."""

from importlib.util import find_spec

from lrurec.cli.doctor import PARTS
from lrurec.errors import MissingPartError


def need(part: str) -> None:
    """Refuse with a sentence if a part of lrurec is not installed."""
    extra, packages = PARTS[part]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingPartError(f"{part} needs {', '.join(missing)}; run: pip install 'lrurec[{extra}]'")
