"""What a request may say: bodies and parameters, checked. Knows JSON and limits, not what is done with them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from lrurec.errors import InputError
from lrurec.serving.store.base import LONGEST_ID

MOST_EVENTS = 1000  # in one request
MOST_RESULTS = 1000  # k
MOST_ITEMS = 10_000  # in a history, an allow- or a deny-list
MOST_IN_ADDRESS = 200  # items among the parameters; a body takes more
BODY_BYTES = 4 << 20

Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)] | int
K = Annotated[int, Meta(ge=1, le=MOST_RESULTS)]
Names = Annotated[list[Name], Meta(max_length=MOST_ITEMS)]


class NewEvent(Struct, forbid_unknown_fields=True):
    """Somebody met an item. `id` names the event: sent again, it is stored once."""

    user: Name
    item: Name
    time: float | str | None = None
    id: Name | None = None


class NewEvents(Struct, forbid_unknown_fields=True):
    """Several events, in their order."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=MOST_EVENTS)]


class Wish(Struct, forbid_unknown_fields=True):
    """Recommendations for a history that is given."""

    history: Names
    k: K = 10
    filter_seen: bool = True
    allow: Names | None = None
    deny: Names | None = None


class NewArtifact(Struct, forbid_unknown_fields=True):
    """An artifact folder on the server's machine."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


_EVENT, _EVENTS = msgspec.json.Decoder(NewEvent), msgspec.json.Decoder(NewEvents)
_WISH, _ARTIFACT = msgspec.json.Decoder(Wish), msgspec.json.Decoder(NewArtifact)
SCHEMAS = (NewEvent, NewEvents, Wish, NewArtifact)


def events(body: bytes) -> list[NewEvent]:
    """One event, or {"events": [...]}."""
    if b'"events"' in body:
        try:
            return _EVENTS.decode(body).events
        except msgspec.ValidationError:
            found = _decoded(msgspec.json.Decoder(), body)
            if not isinstance(found, dict) or "events" in found:
                return _decoded(_EVENTS, body).events  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return [_decoded(_EVENT, body)]


def wish(body: bytes) -> Wish:
    found: Wish = _decoded(_WISH, body)
    return found


def artifact(body: bytes) -> str:
    path: str = _decoded(_ARTIFACT, body).path
    return path


def _decoded(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InputError(f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not JSON ({error})") from None


def number(text: str | None, default: int, most: int, name: str, least: int = 1) -> int:
    """A whole number among the parameters."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise InputError(f"{name} must be a whole number from {least} to {most}")
    return int(text)


def truth(text: str | None, default: bool, name: str) -> bool:
    if text is None:
        return default
    if text not in ("true", "false", "1", "0"):
        raise InputError(f"{name} must be true or false")
    return text in ("true", "1")
