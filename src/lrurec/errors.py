"""Every error a user can meet. Each message is one sentence (or two) that says what to do.

    LrurecError                  the root: `except lrurec.LrurecError` catches all of ours
    ├── SettingsError            a wrong flag, option or key
    ├── InputError               a file that is missing, empty, cut short or not readable
    │   ├── BadRowError          one row of it is wrong (the row and the value are named)
    │   └── NothingLeftError     it was read, but nothing usable remains
    ├── FolderError              a dataset, run or artifact folder is broken or cannot be written
    ├── FetchError               a download failed
    └── MissingPartError         an optional package is not installed

The command line prints the message alone and exits with 2.
"""


class LrurecError(Exception):
    """The root of all errors raised on purpose."""


class SettingsError(LrurecError):
    """A wrong flag, option or key."""


class InputError(LrurecError):
    """A file that is missing, empty, cut short or not readable."""


class BadRowError(InputError):
    """One row is wrong; the message names the row and the value."""


class NothingLeftError(InputError):
    """The input was read, but nothing usable remains."""


class FolderError(LrurecError):
    """A dataset, run or artifact folder is broken or cannot be written."""


class FetchError(LrurecError):
    """A download failed."""


class MissingPartError(LrurecError):
    """An optional package is not installed."""
