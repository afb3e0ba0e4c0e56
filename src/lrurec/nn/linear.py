"""x W^T + b, in the precision that is asked for. Knows one product."""

import torch
from torch import Tensor
from torch.nn import functional as F


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
