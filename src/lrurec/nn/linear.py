"""x W^T + b, in the precision that is asked for. Knows one product."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels.dot16 import paired


def product(x: Tensor, weight: Tensor, half: bool = False) -> Tensor:
    """x W^T, for stacks of both, too. With `half` the factors and their product are rounded to bfloat16, and stay so."""
    if half:
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    return torch.matmul(x, weight.mT)


def linear(x: Tensor, weight: Tensor, bias: Tensor, half: bool = False) -> Tensor:
    """With `half` the factors and their product are rounded to bfloat16; the bias is added to what comes out."""
    if not half:
        return F.linear(x, weight, bias)
    return product(x, weight, half).to(x.dtype) + bias


def factor16(weight: Tensor) -> Any:
    """A matrix [K, N], rounded to bfloat16 and in pairs of rows: as lrurec.kernels.dot16 multiplies by it."""
    return paired(weight.detach().contiguous().to(torch.bfloat16).view(torch.int16).numpy())
