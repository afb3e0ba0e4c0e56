"""Who may do what. Knows keys and roles, not requests.

A key file has one key per line, its role first; the same, separated by commas, may stand in LRUREC_KEYS:

    read  3f9c...
    write 71aa...
    admin 0b2e...

`write` may also read, `admin` may do everything.
"""

import hashlib
import hmac
import os
from pathlib import Path

from lrurec.errors import SettingsError

ROLES = ("read", "write", "admin")
VARIABLE = "LRUREC_KEYS"
_SHORTEST = 16


class Keys:
    """Compares in constant time, with every key, whatever it is asked."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._roles = [(hashlib.sha256(key.encode()).digest(), ROLES.index(role)) for key, role in keys.items()]

    def __len__(self) -> int:
        return len(self._roles)

    def allows(self, key: str, role: str) -> bool | None:
        """Whether a key is good for a role; None if nobody has given it out."""
        given = hashlib.sha256(key.encode(errors="replace")).digest()
        found = -1
        for known, rank in self._roles:
            if hmac.compare_digest(known, given):
                found = max(found, rank)
        return None if found < 0 else found >= ROLES.index(role)


def read_keys(file: str | None) -> Keys:
    """Keys from a file or, without one, from the environment; there may be none."""
    if file is None:
        return _parse(os.environ.get(VARIABLE, "").replace(",", "\n"), VARIABLE)
    try:
        keys = _parse(Path(file).read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read ({error}); check the path after --keys") from None
    if not len(keys):
        raise SettingsError(
            f"{file} has no keys; write lines with a role ({', '.join(ROLES)}) and a key, or leave out --keys"
        )
    return keys


def _parse(text: str, where: str) -> Keys:
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(":", " ", 1).split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ROLES:
            raise SettingsError(
                f"line {number} of {where} must be a role ({', '.join(ROLES)}), a space or colon, and a key"
            )
        if len(words[1]) < _SHORTEST:
            raise SettingsError(f"the key in line {number} of {where} is too short; use {_SHORTEST} characters or more")
        if keys.get(words[1], words[0]) != words[0]:
            raise SettingsError(f"the key in line {number} of {where} stands there with another role, too")
        keys[words[1]] = words[0]
    return Keys(keys)
