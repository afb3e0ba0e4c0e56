"""Several models trained as one, each as if it were alone. Knows learners and how a model of copies is put together.

Copy c is what a run with another seed would train: its own beginning, batches, dropout and negatives. (With the same batches the copies
come out so much alike that averaging them brings little.) On a processor with several cores the copies step at the same time.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor

from lrurec.data.split import Sequences
from lrurec.models.lrurec import LRURec
from lrurec.nn.threads import side_by_side
from lrurec.training.config import RunConfig
from lrurec.training.learner import Learner, build, settled

_APART = 1_000_003  # between the seeds of copies


class Together:
    """As a Learner; `model` is up to date behind `settle` and `tensors`."""

    def __init__(
        self, items: int, users: int, train: Sequences, config: RunConfig, whole: Sequences | None = None
    ) -> None:
        self.config = settled(config)
        t = self.config.training
        one = replace(self.config, model=replace(self.config.model, copies=1))
        apart = [replace(one, training=replace(t, seed=t.seed + c * _APART)) for c in range(config.model.copies)]
        self.parts = [Learner(items, users, train, own, whole) for own in apart]
        self.steps = self.parts[0].steps
        model = build(items, users, self.config)
        assert isinstance(model, LRURec)
        self.model = model
        model.join(self._copies())

    def _copies(self) -> list[LRURec]:
        return [part.model for part in self.parts if isinstance(part.model, LRURec)]

    def step(self, number: int) -> tuple[float, int]:
        """Step 0, 1, ...: the mean loss, and how many targets each learned from."""
        done = side_by_side([partial(part.step, number) for part in self.parts])
        losses, counts = zip(*done, strict=True)
        return sum(losses) / len(losses), counts[0]

    def settle(self) -> None:
        for part in self.parts:
            part.settle()
        self.model.join(self._copies())

    def tensors(self) -> dict[str, Tensor]:
        self.model.join(self._copies())
        found: dict[str, Tensor] = {}
        for c, part in enumerate(self.parts):
            own = {**part.tensors(), "own_bias": self._copies()[c].bias.detach()}
            found |= {f"copy{c}.{name}": tensor for name, tensor in own.items()}
        return found

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on behind a step, with what `tensors` gave there; the model has its weights already."""
        self.model.part(self._copies())
        for c, (part, one) in enumerate(zip(self.parts, self._copies(), strict=True)):
            prefix = f"copy{c}."
            own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            one.bias.data.copy_(own.pop("own_bias"))
            part.restore(own, step)


def learner_for(
    items: int, users: int, train: Sequences, config: RunConfig, whole: Sequences | None = None
) -> Learner | Together:
    """What trains the model of a config."""
    kind = Together if getattr(config.model, "copies", 1) > 1 else Learner
    return kind(items, users, train, config, whole)
