"""A filter that is learned in the frequency domain (FMLP-Rec). Knows windows and packed sequences, not models.

    Y = irfft(W * rfft(X))        W: a complex weight per frequency and channel, X: a window of `length` positions

That is the convolution, around the circle of the window, with the kernel w = irfft(W): of all positions, the last is
the only one that sees nothing of what comes after it. A `causal` filter has the same weights and the same kernel, but
nothing goes around: y_k = sum over j = 0..k of w_j x_{k-j}.
"""

import torch
from torch import Tensor, nn

from lrurec.nn.causal import causal_convolution


class SpectralFilter(nn.Module):
    """weight [length // 2 + 1, width, 2]: real and imaginary parts, small and random."""

    def __init__(self, length: int, width: int, generator: torch.Generator, std: float = 0.02) -> None:
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(std * torch.randn(length // 2 + 1, width, 2, generator=generator))

    def kernel(self) -> Tensor:
        """[length, width]: what the spectrum says in time; row j weighs what stands j positions before."""
        kernel: Tensor = torch.fft.irfft(torch.view_as_complex(self.weight), self.length, 0)
        return kernel

    def causal(self, x: Tensor, offsets: Tensor) -> Tensor:
        """[N, width] over packed sequences, none longer than `length`."""
        return causal_convolution(x, self.kernel(), offsets)

    def circular(self, x: Tensor) -> Tensor:
        """[B, length, width] over whole windows."""
        spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.weight)
        filtered: Tensor = torch.fft.irfft(spectrum, self.length, 1)
        return filtered

    def newest(self, x: Tensor) -> Tensor:
        """[B, width]: the last position of `circular` alone."""
        return (x * self.kernel().flip(0)).sum(1)
