"""Keep large buffers instead of giving them back to the system after every step. Knows the C library, not the loop.

By default glibc maps every large buffer anew and the system clears it page by page; a training step allocates the same
buffers each time, and clearing them costs about a fifth of it.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 30


def keep_buffers() -> bool:
    """Tell the allocator to keep what it has; True where that could be said."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library: nothing to tell it
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE - 1))
