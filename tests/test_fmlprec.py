"""FMLP-Rec beside its formulas, and the rows that its published form trains on."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Sizes, TrainingBatch
from lrurec.models.fmlprec import FMLPRec, FMLPRecConfig, some_rows
from lrurec.nn.dropout import Keys
from lrurec.nn.spectral import SpectralFilter

Array = NDArray[np.float64]


def filter_of(length: int, width: int = 3) -> SpectralFilter:
    return SpectralFilter(length, width, torch.Generator().manual_seed(length), std=1.0)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9])
def test_a_filter_is_the_product_of_spectra(length: int) -> None:
    f = filter_of(length)
    x = torch.randn(4, length, 3, generator=torch.Generator().manual_seed(0))
    weight = f.weight.detach().numpy()
    expected = np.fft.irfft(np.fft.rfft(x.numpy(), axis=1) * (weight[..., 0] + 1j * weight[..., 1]), length, 1)
    with torch.no_grad():
        assert np.allclose(f.circular(x), expected, atol=1e-5)
        assert torch.allclose(f.newest(x), f.circular(x)[:, -1], atol=1e-5)
        around = torch.stack([x.roll(j, 1) * f.kernel()[j] for j in range(length)]).sum(0)
        assert torch.allclose(around, f.circular(x), atol=1e-5)


def test_a_causal_filter_is_the_same_kernel_without_the_way_around() -> None:
    f = filter_of(8)
    x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        causal = f.causal(x.reshape(16, 3), torch.tensor([0, 8, 16])).view(2, 8, 3)
        assert torch.allclose(causal[:, -1], f.circular(x)[:, -1], atol=1e-5)
        assert not torch.allclose(causal[:, 0], f.circular(x)[:, 0], atol=1e-2)
        x[:, 5:] = 0  # nothing left to come around
        causal = f.causal(x.reshape(16, 3), torch.tensor([0, 8, 16])).view(2, 8, 3)
        assert torch.allclose(causal[:, 0], f.kernel()[0] * x[:, 0], atol=1e-5)


def model_of(filter: str, length: int = 7, **more: float) -> FMLPRec:
    config = FMLPRecConfig(width=4, filter=filter, **more)  # type: ignore[arg-type]
    model = FMLPRec(Sizes(9, 0, length), config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            parameter.add_(noise, alpha=0.3)
    return model


def by_hand(model: FMLPRec, items: list[int]) -> Array:
    """The vector behind some inputs, in numpy, by the formulas of the paper."""
    p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    length, n, circular = model.sizes.max_length, len(items), model.config.filter == "circular"

    def norm(x: Array, name: str) -> Array:
        spread = np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return (x - x.mean(1, keepdims=True)) / spread * p[f"{name}.weight"] + p[f"{name}.bias"]  # type: ignore[no-any-return]

    def gelu(x: Array) -> Array:
        return x * torch.special.ndtr(torch.from_numpy(x)).numpy()  # type: ignore[no-any-return]

    if circular:  # at the right of a window; nothing but positions before
        x = p["positions"].copy()
        x[length - n :] += p["embedding"][items]
    else:
        x = p["embedding"][items] + (p["positions"][:n] if model.config.positions else 0)
    x = norm(x, "norm")
    for k in range(model.config.blocks):
        b = f"blocks.{k}"
        w = p[f"{b}.filter.weight"]
        w = w[..., 0] + 1j * w[..., 1]
        if circular:
            y = np.fft.irfft(np.fft.rfft(x, axis=0) * w, length, 0)
        else:
            kernel = np.fft.irfft(w, length, 0)
            y = np.stack([sum(kernel[j] * x[i - j] for j in range(i + 1)) for i in range(n)])
        z = norm(y + x, f"{b}.norm1")
        inner = gelu(z @ p[f"{b}.pffn.w1"].T + p[f"{b}.pffn.b1"])
        x = norm(inner @ p[f"{b}.pffn.w2"].T + p[f"{b}.pffn.b2"] + z, f"{b}.norm2")
    newest: Array = x[-1]
    return newest


@pytest.mark.parametrize(("filter", "positions"), [("causal", False), ("causal", True), ("circular", False)])
@pytest.mark.parametrize("length", [6, 7])
def test_it_computes_the_formulas(filter: str, positions: bool, length: int) -> None:
    model = model_of(filter, length, blocks=3, positions=positions)
    histories = [[3], [0], [1, 2, 3, 4, 5, 6], [9, 9], [5, 1, 8]]
    batch = Batch(
        torch.tensor([item for history in histories for item in history]),
        torch.tensor([0, *map(len, histories)]).cumsum(0),
    )
    with torch.no_grad():
        found = model.last(batch)
        assert torch.allclose(found, model.encode(batch)[batch.lasts], atol=1e-5)
    for row, history in zip(found, histories, strict=True):
        assert np.allclose(row, by_hand(model, history), atol=1e-4)


def windows(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def test_rows_are_the_newest_and_some_by_chance() -> None:
    bounds = windows(5, 1, 3, 40)
    counts = torch.zeros(49)
    for seed in range(300):
        rows = some_rows(bounds, 4, Keys(seed))
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert torch.bincount(torch.bucketize(rows, bounds[1:], right=True)).tolist() == [4, 1, 3, 4]
        assert torch.isin(bounds[1:] - 1, rows).all()
        counts[rows] += 1
    assert counts[0:4].min() > 150 and counts[0:4].max() < 300  # 3 of 4
    assert counts[9:48].min() > 5 and counts[9:48].max() < 60  # 3 of 39
    first, again, other = (some_rows(bounds, 4, Keys(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_examples_are_the_vectors_of_those_rows() -> None:
    """With positions and items as they are: a start token is a window of its own, though it shares one of the batch."""
    model = model_of("circular", dropout=0.0, prefixes=2)
    batch = TrainingBatch(
        torch.tensor([0, 4, 5, 6, 7, 2, 3]),
        torch.tensor([0, 1, 5, 7]),
        targets=torch.tensor([3, 4, 5, 6, 7, 2, 8]),
        windows=torch.tensor([0, 5, 7]),
    )
    with torch.no_grad():
        every = model.encode(batch)
        for seed in range(5):
            hidden, targets = model.examples(batch, Keys(seed))
            rows = some_rows(batch.windows, 2, Keys(seed))
            assert torch.allclose(hidden, every[rows], atol=1e-5)
            assert torch.equal(targets, batch.targets[rows])
    assert len(model_of("causal", dropout=0.0).examples(batch, Keys(0))[0]) == 7


def test_settings() -> None:
    with pytest.raises(SettingsError, match="unknown model.filter 'cirular'; did you mean 'circular'"):
        FMLPRecConfig(filter="cirular")
    with pytest.raises(SettingsError, match="model.dropout must lie between 0 and 1, not 1.5"):
        FMLPRecConfig(dropout=1.5)
    with pytest.raises(SettingsError, match="must be 1 or more"):
        FMLPRecConfig(prefixes=0)


def test_all_randomness_is_the_generator() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(FMLPRec(Sizes(9), FMLPRecConfig(), torch.Generator().manual_seed(0)).state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    spread = found[0]["blocks.0.filter.weight"].std()
    assert 0.018 < spread < 0.022
