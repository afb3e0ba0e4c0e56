"""What the process does with memory it no longer needs. Knows the C library.

A training step allocates large arrays and frees them. glibc gives those back to the system and gets them again in the next
step, page by page and filled with zeros: a tenth of a step on a catalogue of 57,000 items. But arrays whose sizes change from
batch to batch leave gaps that fit nothing: what is kept has to be given back now and then, or it grows for hours.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_KEPT, _AHEAD = 256 << 20, 64 << 20


def keep_memory() -> bool:
    """Let malloc keep arrays of up to 256 MB for the next step; whether it can. For a process that trains and ends."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    wanted = ((_MMAP_THRESHOLD, _KEPT), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD))
    return all(set_option(ctypes.c_int(option), ctypes.c_int(value)) == 1 for option, value in wanted)


def give_back() -> bool:
    """Hand what is free to the system; whether it can."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim(ctypes.c_size_t(0))
    return True
