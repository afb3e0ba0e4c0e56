"""Compiled inner loops, most in single precision. Know rows of numbers, not layers or losses.

Each runs on the calling thread and lets go of the interpreter, so that several threads can work on parts of their
own. They are written so that the compiler makes vector instructions of them: no branches, 32-bit integers, and an
exponential of our own (a call of the library's would run one element at a time).

    arithmetic   exponential, normal distribution, the hash of dropout, 16-bit floats; how the loops are compiled
    softmax      scores to exponentials, sums and gradients; ranks
    dot16        products of 16-bit floats
    softmax16    softmax around such products
    block        what stands between the products of a block, forward and backward
    block16      a whole block around products of 16-bit floats
    attention    the softmax of attention over packed sequences, forward and backward
    gru          a gated recurrent unit over packed sequences
    additive     the additive attention of NARM
    convolution  a causal convolution per channel
    step         one event through all blocks
    select       the best of many scores
    wkv, shift   the average and the token shift of RWKV, forward and backward
"""

import os
from pathlib import Path


def compiled_before() -> bool:
    """Whether loops were compiled on this machine before, and kept: then nobody has to wait for them."""
    where = os.environ.get("NUMBA_CACHE_DIR")
    folder, files = (Path(where), "**/*.nbi") if where else (Path(__file__).parent, "__pycache__/*.nbi")
    return any(folder.glob(files))
