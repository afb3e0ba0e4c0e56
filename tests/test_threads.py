"""Tasks side by side: at the same time, in order, with gradients, with what goes wrong."""

from collections.abc import Iterator
from threading import Barrier

import pytest
import torch

from lrurec.nn.threads import side_by_side


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_in_order_and_with_gradients(threads: int, count: int) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(count)]

    def task(number: int) -> int:
        (weights[number] * number).sum().backward()  # type: ignore[no-untyped-call]
        return number

    assert side_by_side([lambda n=n: task(n) for n in range(count)]) == list(range(count))  # type: ignore[misc]
    assert [w.grad.tolist() for w in weights if w.grad is not None] == [[n] * 3 for n in range(count)]


def test_at_the_same_time_with_a_share_of_the_threads(threads: int) -> None:
    met = Barrier(2 if threads > 1 else 1, timeout=60)

    def task() -> int:
        met.wait()  # for the other: behind each other, they would never meet
        return torch.get_num_threads()

    assert side_by_side([task, task]) == [max(1, threads // 2)] * 2
    assert torch.get_num_threads() == threads


def test_what_goes_wrong_is_told(threads: int) -> None:
    def fails() -> None:
        raise ValueError("no number")

    with pytest.raises(ValueError, match="no number"):
        side_by_side([lambda: None, fails])
