"""`python -m lrurec.cli.attached PARENT ARGUMENT...`: the command line in a process that does not outlive its parent.

The queue of `lrurec reproduce` starts its cells with it: if the queue is killed, the kernel sends each of them a SIGTERM, and
they save and leave.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def command(arguments: Sequence[str]) -> list[str]:
    """The command line that runs lrurec attached to this process."""
    return [sys.executable, "-m", "lrurec.cli.attached", str(os.getpid()), *arguments]


def _main(parent: int, arguments: Sequence[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was gone before that
        return 128 + signal.SIGTERM
    from lrurec.cli.main import main

    return main(arguments)


if __name__ == "__main__":
    raise SystemExit(_main(int(sys.argv[1]), sys.argv[2:]))
