"""The loop: it learns, and a run that is killed and continued ends bit for bit like one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

import lrurec
from lrurec.data.batches import Lanes
from lrurec.errors import FolderError, SettingsError
from lrurec.models.lrurec import LRURec
from lrurec.nn.loss import cross_entropy
from lrurec.training.checkpoint import load_checkpoint, save_checkpoint
from lrurec.training.config import RunConfig, config_for, from_values, to_toml
from lrurec.training.learner import TrainingFailed
from lrurec.training.run import Run
from lrurec.training.schedule import learning_rate
from lrurec.training.steps import RowSteps, WholeSteps, optimizer_for
from lrurec.training.trainer import BEST, LAST, METRICS, Trainer

SMALL = [
    "model.width=16",
    "model.channels=16",
    "training.steps=60",
    "training.validate_every=20",
    "training.batch=16",
    "training.learning_rate=0.02",
]


@pytest.fixture(scope="module")
def cycle() -> lrurec.Dataset:
    """Next is always item + 1: whoever has a memory of one item knows everything."""
    rows = [(u, (u + k) % 12) for u in range(40) for k in range(9)]
    return lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"))


def trainer(dataset: lrurec.Dataset, folder: Path, *more: str, recipe: str = "fast") -> Trainer:
    folder.mkdir(exist_ok=True)
    config = config_for(recipe, None, [*SMALL, *more])
    return Trainer(dataset, lrurec.leave_last_out(dataset), config, folder)


def test_it_learns_what_can_be_learned(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    t = trainer(cycle, tmp_path, "training.steps=300", "model.dropout=0.1")
    losses: list[float] = []
    t.train(lambda p: losses.append(p.loss))
    assert losses[0] > 2.3 and losses[-1] < 0.6
    assert t.evaluate("test")["recall@10"] == 1.0
    assert t.evaluate("test")["ndcg@10"] > 0.95
    rows = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [r["step"] for r in rows] == list(range(20, 301, 20))


SAMPLED = ("training.loss=sampled", "training.negatives=8")
SHARED = ("training.shared_negatives=true", "training.negatives_from=popularity")


@pytest.mark.parametrize("source", ["uniform", "popularity"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_it_learns_from_sampled_negatives(cycle: lrurec.Dataset, tmp_path: Path, source: str, shared: str) -> None:
    more = (f"training.negatives_from={source}", f"training.shared_negatives={shared}", "model.dropout=0.1")
    t = trainer(cycle, tmp_path, *SAMPLED, *more, "training.steps=300")
    t.train()
    (learner,) = t.learner.parts
    assert isinstance(learner.updates, RowSteps)
    assert (learner.updates.log_q is None) == (source == "uniform" and shared == "false")
    assert t.evaluate("test")["ndcg@10"] > 0.95


def same_weights(one: Path, other: Path) -> None:
    for name in (LAST, BEST):
        a, b = load_checkpoint(one / name)[0], load_checkpoint(other / name)[0]
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("shared", [(), SHARED], ids=["sampled", "shared"])
def test_saved_between_validations_goes_on_the_same(
    cycle: lrurec.Dataset, tmp_path: Path, shared: tuple[str, ...]
) -> None:
    """Rows that wait for their update are saved as they are."""
    whole, part = (trainer(cycle, tmp_path / name, *SAMPLED, *shared) for name in ("whole", "part"))
    whole.train()

    def stop(progress: object) -> None:
        part.interrupted = part.step == 47

    part.train(stop)
    tensors, state = load_checkpoint(tmp_path / "part" / LAST)
    assert state["step"] == 47 and int(tensors["last.embedding"].max()) == 47
    again = trainer(cycle, tmp_path / "part", *SAMPLED, *shared)
    again.resume()
    again.train()
    same_weights(tmp_path / "whole", tmp_path / "part")


def test_a_dense_run_goes_on_with_rows(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    """The checkpoint of a run with dense updates says nothing of rows: all are up to date."""
    dense = trainer(cycle, tmp_path, *SAMPLED, *SHARED, "training.updates=dense")
    assert isinstance(dense.learner.parts[0].updates, WholeSteps)
    dense.train(lambda progress: setattr(dense, "interrupted", dense.step == 47))
    with torch.no_grad():
        before = {name: p.clone() for name, p in dense.model.named_parameters()}
    rows = trainer(cycle, tmp_path, *SAMPLED, *SHARED)
    rows.resume()
    assert isinstance(rows.learner.parts[0].updates, RowSteps)
    rows.learner.settle()
    assert all(torch.equal(p, before[name]) for name, p in rows.model.named_parameters())
    rows.train()
    assert rows.step == rows.steps


CARRIED = ("training.carry_state=true", "training.max_length=3", "training.batch=7")


@pytest.mark.parametrize(
    "loss",
    [(), SAMPLED, (*SAMPLED, *SHARED), CARRIED, (*CARRIED, *SAMPLED)],
    ids=["full", "sampled", "shared", "carried", "carried-sampled"],
)
def test_stopped_and_continued_is_the_same(cycle: lrurec.Dataset, tmp_path: Path, loss: tuple[str, ...]) -> None:
    whole = trainer(cycle, tmp_path / "whole", *loss)
    whole.train()
    part = trainer(cycle, tmp_path / "part", *loss)

    class Stop(Exception):
        pass

    def stop(progress: object) -> None:
        if part.step == 47:
            raise Stop

    with pytest.raises(Stop):
        part.train(stop)
    again = trainer(cycle, tmp_path / "part", *loss)
    again.resume()
    assert again.step == 40
    again.train()
    same_weights(tmp_path / "whole", tmp_path / "part")
    steps = [json.loads(x)["step"] for x in (tmp_path / "part" / METRICS).read_text().splitlines()]
    assert steps == [20, 40, 60]


@pytest.mark.parametrize("more", [(), SAMPLED, ("model.layer_norm=false",)], ids=["full", "sampled", "plain"])
def test_carried_states_are_those_of_stepping(cycle: lrurec.Dataset, tmp_path: Path, more: tuple[str, ...]) -> None:
    """With weights that stay as they are, what a step carries on is what stepping through the history comes to."""
    still = (
        "training.learning_rate=0.0",
        "training.weight_decay=0.0",
        "model.dropout=0.0",
        "training.precision=float32",
    )
    t = trainer(cycle, tmp_path, *CARRIED, *more, *still)
    (learner,) = t.learner.parts
    assert isinstance(t.model, LRURec) and isinstance(learner.sampler, Lanes) and learner.carried is not None
    went_on, firsts = 0, np.zeros(7, int)  # of each lane: where the history at hand was met first
    for step in range(2 * learner.sampler.steps_per_epoch):
        chosen, go_on = learner.sampler.chosen(step), learner.sampler.go_on(step)
        went_on += int(go_on.sum())
        learner.step(step)
        for lane, w in enumerate(chosen):
            if not go_on[lane]:
                firsts[lane] = learner.windows.starts[w] - (0 if learner.windows.opens[w] else 1)
            state = t.model.initial_state()
            with torch.no_grad():
                for item in learner.windows.items[firsts[lane] : learner.windows.stops[w] - 1].tolist():
                    state, _ = t.model.step(state, torch.tensor([item + 1]))
            assert torch.allclose(learner.carried[lane], state[0], atol=1e-5)
    assert went_on > 40


def test_only_some_models_carry_states(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    for more, named in (
        (["model.mixer=rwkv"], "lrurec with model.mixer=rwkv"),
        (["model.name=gru4rec"], "gru4rec"),
        (["model.name=mf"], "mf"),
    ):
        config = config_for("fast", None, [*more, "training.carry_state=true"])
        with pytest.raises(SettingsError, match=f"lrurec with model.mixer=lru.*leave it out for {named}$"):
            Run.create(tmp_path / "run", cycle, config)
        assert not (tmp_path / "run").exists()


def test_a_row_without_its_checkpoint_is_written_again(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    """Killed between the row of the first validation and the first checkpoint, it starts from the beginning."""
    (tmp_path / METRICS).write_text('{"step": 20}\n')
    trainer(cycle, tmp_path).train()
    rows = [json.loads(x) for x in (tmp_path / METRICS).read_text().splitlines()]
    assert [r["step"] for r in rows] == [20, 40, 60] and "loss" in rows[0]


def test_early_stopping_keeps_the_best(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    t = trainer(
        cycle, tmp_path, "training.learning_rate=0.0", "training.steps=0", "training.patience=3", recipe="paper"
    )
    t.train()
    assert t.stopped and t.step == 20 * 4 and t.best_step == 20
    assert load_checkpoint(tmp_path / BEST)[1]["step"] == 20


def test_a_loss_that_is_no_number(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    t = trainer(cycle, tmp_path)
    with torch.no_grad():
        t.model.get_parameter("bias")[0] = float("nan")
    with pytest.raises(TrainingFailed, match=r"lower training\.learning_rate"):
        t.train()


@pytest.mark.parametrize("able", [True, False])
def test_precision_reaches_the_loss_and_auto_is_recorded(
    cycle: lrurec.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    asked = []

    def spy(*inputs: torch.Tensor, half: bool) -> torch.Tensor:
        asked.append(half)
        found: torch.Tensor = cross_entropy(*inputs, half=half)
        return found

    monkeypatch.setattr("lrurec.training.steps.cross_entropy", spy)
    monkeypatch.setattr("lrurec.training.learner.multiplies_half", lambda device: able)
    config = config_for("fast", None, ["training.steps=1", "model.width=8"])
    assert config.training.precision == "auto"
    run = Run.create(tmp_path / "run", cycle, config)
    assert Run.open(tmp_path / "run").config.training.precision == ("bfloat16" if able else "float32")
    Trainer(cycle, lrurec.leave_last_out(cycle), run.config, run.folder).train()
    assert asked == [able]


def test_decay_groups(cycle: lrurec.Dataset, tmp_path: Path) -> None:
    for decays in (True, False):
        t = trainer(cycle, tmp_path, f"training.decay_recurrence={str(decays).lower()}")
        names = {id(p): n for n, p in t.model.named_parameters()}
        decayed, spared = (
            {names[id(p)] for p in g["params"]} for g in optimizer_for(t.model, t.config.training).param_groups
        )
        assert {"embedding", "blocks.0.mixer.b_weight", "blocks.1.pffn.w1"} <= decayed
        assert {"bias", "norm.weight", "blocks.0.norm1.bias", "blocks.0.mixer.b_bias", "blocks.1.pffn.b2"} <= spared
        assert ("blocks.0.mixer.log" in decayed) == decays
        assert len(decayed) + len(spared) == len(names)


@pytest.mark.parametrize(
    ("mixer", "recurrent"),
    [("s4", ("log_dt", "log_a", "a_imag")), ("rwkv", ("decay", "bonus", "mu"))],
)
def test_decay_groups_of_other_mixers(
    cycle: lrurec.Dataset, tmp_path: Path, mixer: str, recurrent: tuple[str, ...]
) -> None:
    expected = {f"blocks.{k}.mixer.{name}" for k in (0, 1) for name in recurrent}
    expected |= {f"blocks.{k}.pffn.mu" for k in (0, 1) if mixer == "rwkv"}
    groups = []
    for decays in ("true", "false"):
        t = trainer(
            cycle, tmp_path, "model.channels=128", f"model.mixer={mixer}", f"training.decay_recurrence={decays}"
        )
        names = {id(p): n for n, p in t.model.named_parameters()}
        groups.append({names[id(p)] for p in optimizer_for(t.model, t.config.training).param_groups[0]["params"]})
    assert groups[0] - groups[1] == expected and groups[1] < groups[0]
    assert "blocks.0.mixer.out_weight" in groups[1] and "blocks.0.mixer.out_bias" not in groups[0]


def test_one_cycle() -> None:
    config = config_for("fast", None, ["training.steps=100"]).training
    rates = [learning_rate(s, config) for s in range(101)]
    assert rates[30] == config.learning_rate == max(rates)
    assert rates[0] == pytest.approx(0.04 * config.learning_rate) and rates[100] < 1e-4 * config.learning_rate


def test_a_checkpoint_is_a_safetensors_file(tmp_path: Path) -> None:
    """The library reads what was written, of every kind and shape; weights that share memory or lie turned are no problem."""
    model = torch.nn.Module()
    model.w, model.b = torch.nn.Parameter(torch.randn(3, 5).T), torch.nn.Parameter(torch.tensor(2.5))
    more = {
        "x": torch.arange(7), "half": torch.randn(3).bfloat16(), "none": torch.zeros(0, 4), "d": torch.randn(2, 2).double(),
        "i": torch.arange(3, dtype=torch.int32), "first.w": model.w.detach()[1:3],
    }  # fmt: skip
    save_checkpoint(tmp_path / LAST, model, more, {"step": 3})
    found = load_file(tmp_path / LAST)
    assert found.keys() == {"model.w", "model.b", *more}
    for name, tensor in {"model.w": model.w.detach(), "model.b": model.b.detach(), **more}.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert load_checkpoint(tmp_path / LAST)[1] == {"step": 3}


def test_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    """The one before it is kept, and nothing is left beside it."""
    script = """
import resource, signal, sys
from pathlib import Path
import torch
from lrurec.errors import FolderError
from lrurec.training.checkpoint import save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
save_checkpoint(path, torch.nn.Linear(3, 3), {}, {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    save_checkpoint(path, torch.nn.Linear(999, 999), {}, {"step": 2})
except FolderError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(tmp_path / LAST)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cannot be written (File too large); the one before it is kept" in said
    assert [p.name for p in tmp_path.iterdir()] == [LAST] and load_checkpoint(tmp_path / LAST)[1] == {"step": 1}


def test_damaged_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="does not exist"):
        load_checkpoint(tmp_path / LAST)
    (tmp_path / LAST).write_bytes(b"\x08\x00\x00\x00rubbish")
    with pytest.raises(FolderError, match="is damaged"):
        load_checkpoint(tmp_path / LAST)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("model.dropuot=0.6", "did you mean 'dropout'"),
        ("model.heads=2", "model.heads is a setting of sasrec, bert4rec, not of lrurec"),
        ("modle.dropout=0.6", "did you mean 'model'"),
        ("model.dropout=many", "must be a number"),
        ("model.blocks=1.5", "must be a whole number"),
        ("model.residual=1", "must be true or false"),
        ("dropout", "part.name=value"),
        ("training.schedule=cosine", "one-cycle"),
        ("training.batch=0", "1 or more"),
        ("training.loss=sampld", "did you mean 'sampled'"),
        ("training.negatives_from=random", "known: uniform, popularity"),
        ("training.negatives=0", "1 or more"),
    ],
)
def test_wrong_settings(assignment: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        config_for("paper", None, [assignment])


def test_settings_come_in_one_order(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[model]\ndropout = 0.5\nwidth = 32\n[training]\nseed = 4\n")
    config = config_for("fast", str(file), ["model.dropout=0.7"])
    assert (config.model.dropout, config.model.width) == (0.7, 32)
    assert (config.training.seed, config.training.learning_rate) == (4, 4e-3)
    file.write_text(to_toml(config))
    assert config_for("paper", str(file), []) == config
    assert from_values({}) == RunConfig()


KILLED = """
import sys, polars as pl, lrurec
from pathlib import Path
from lrurec.training.config import config_for
from lrurec.training.trainer import Trainer
rows = [(u, (u + k) % 12) for u in range(40) for k in range(9)]
dataset = lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"))
config = config_for("fast", None, sys.argv[2:])
t = Trainer(dataset, lrurec.leave_last_out(dataset), config, Path(sys.argv[1]))
if (Path(sys.argv[1]) / "last.safetensors").exists():
    t.resume()
t.train(lambda p: print(p.step, flush=True))
"""


def test_killed_and_continued_is_the_same(tmp_path: Path) -> None:
    """A real SIGKILL, several times, at arbitrary moments."""
    settings = [*SMALL, "training.steps=400", "training.validate_every=10"]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}

    def start(folder: Path) -> "subprocess.Popen[str]":
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", KILLED, str(folder), *settings]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)

    whole, part = tmp_path / "whole", tmp_path / "part"
    with start(whole) as process:
        process.communicate()
        assert process.returncode == 0
    kills = 0
    for wait in (0.0, 0.13, 0.37, 0.71):
        with start(part) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the first step is done
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += process.returncode == -signal.SIGKILL
    assert kills >= 2, "it was never killed at work"
    with start(part) as process:
        process.communicate()
        assert process.returncode == 0
    a, b = load_checkpoint(whole / LAST)[0], load_checkpoint(part / LAST)[0]
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert (whole / METRICS).read_text().count("\n") == (part / METRICS).read_text().count("\n") == 40


def test_memory_is_kept_for_the_next_step() -> None:
    """Pages that a process has to ask for, in ten rounds that allocate and free 80 MB."""
    script = """
import resource, sys
import numpy as np
from lrurec.training.memory import keep_memory
if sys.argv[1] == "kept" and not keep_memory():
    raise SystemExit(3)
for k in range(12):
    if k == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(10 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {}
    for way in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", script, way], stdout=subprocess.PIPE, text=True)
        if done.returncode == 3:
            pytest.skip("the C library is not glibc")
        faults[way] = int(done.stdout)
    assert faults["kept"] * 10 < faults["given back"]


def test_what_is_free_goes_back_to_the_system() -> None:
    """Also where small arrays that are still in use stand between the gaps."""
    script = """
import numpy as np
from lrurec.training.memory import give_back, keep_memory
if not keep_memory():
    raise SystemExit(3)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
arrays = [np.ones((2 << 20) if k % 2 else 1000) for k in range(60)]
del arrays[1::2]
before = resident()
give_back()
print(before - resident(), sum(a.sum() for a in arrays))
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    if done.returncode == 3:
        pytest.skip("the C library is not glibc")
    given, total = done.stdout.split()
    assert int(given) > 300 << 20 and float(total) == 30_000
