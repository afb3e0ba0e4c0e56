"""`lrurec import-checkpoint`: the scores of a checkpoint in the authors' layout stay what they were."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lrurec
from conftest import Ran, Run
from lrurec.models.base import Batch
from lrurec.training.run import Run as Folder

FRUIT = ["apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel", "iris", "jujube", "kiwi", "lime"]
NUMBER = {item: (5 * k) % 12 + 1 for k, item in enumerate(FRUIT)}  # theirs, in an order of their own
WIDTH, CHANNELS = 8, 16

State = dict[str, Tensor]


def state(items: int = 12, width: int = WIDTH, channels: int = CHANNELS, blocks: int = 2) -> State:
    """A state dict with the authors' names, every number random."""
    g = torch.Generator().manual_seed(3)

    def real(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g) * 0.4

    def pair(*shape: int) -> Tensor:
        return torch.complex(real(*shape), real(*shape))

    made = {"embedding.token.weight": real(items + 1, width), "model.bias": real(items + 1)}
    norms = ["embedding.layer_norm"]
    for k in range(blocks):
        block = f"model.lru_blocks.{k}"
        made[f"{block}.lru_layer.params_log"] = real(3, channels) - torch.tensor([[2.0], [0.0], [1.0]])
        made[f"{block}.lru_layer.in_proj.weight"] = pair(channels, width)
        made[f"{block}.lru_layer.in_proj.bias"] = pair(channels)
        made[f"{block}.lru_layer.out_proj.weight"] = pair(width, channels)
        made[f"{block}.lru_layer.out_proj.bias"] = pair(width)
        made[f"{block}.feed_forward.w_1.weight"] = real(4 * width, width)
        made[f"{block}.feed_forward.w_1.bias"] = real(4 * width)
        made[f"{block}.feed_forward.w_2.weight"] = real(width, 4 * width)
        made[f"{block}.feed_forward.w_2.bias"] = real(width)
        norms += [f"{block}.lru_layer.layer_norm", f"{block}.feed_forward.layer_norm"]
    for name in norms:
        made[f"{name}.weight"], made[f"{name}.bias"] = 1 + real(width), real(width)
    return made


def twin(s: State, tokens: list[int]) -> Tensor:
    """The published model, word by word: complex numbers, one step after the other. Scores of tokens 1 to V."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], s[f"{name}.weight"], s[f"{name}.bias"])

    x = norm(s["embedding.token.weight"][tokens or [0]], "embedding.layer_norm")
    for k in range(sum(name.endswith("params_log") for name in s)):
        lru, forward = f"model.lru_blocks.{k}.lru_layer", f"model.lru_blocks.{k}.feed_forward"
        nu, theta, gamma = s[f"{lru}.params_log"].exp()
        decay = torch.exp(torch.complex(-nu, theta))
        h, states = torch.zeros_like(decay), []
        for row in x:
            u = s[f"{lru}.in_proj.weight"] @ row.to(torch.complex64) + s[f"{lru}.in_proj.bias"]
            h = decay * h + gamma * u
            states.append(s[f"{lru}.out_proj.weight"] @ h + s[f"{lru}.out_proj.bias"])
        z = norm(torch.stack(states).real + x, f"{lru}.layer_norm")
        inner = F.gelu(z @ s[f"{forward}.w_1.weight"].T + s[f"{forward}.w_1.bias"])
        x = norm(inner @ s[f"{forward}.w_2.weight"].T + s[f"{forward}.w_2.bias"] + z, f"{forward}.layer_norm")
    return (s["embedding.token.weight"] @ x[-1] + s["model.bias"])[1:]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    rows = [(f"u{u}", FRUIT[(u * 7 + k * k) % 12]) for u in range(30) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    return tmp_path / "data"


Import = Callable[..., Ran]


@pytest.fixture
def bring(shop: Path, run: Run) -> Import:
    """Save what is given as a torch file, and import it."""

    def command(saved: Any, *options: object, items: str | None = json.dumps(NUMBER)) -> Ran:
        torch.save(saved, shop.parent / "model.pth")
        if items is not None:
            (shop.parent / "items").write_text(items)
            options = ("--items", shop.parent / "items", *options)
        return run(
            "import-checkpoint", shop.parent / "model.pth", "--dataset", shop, "--out", shop.parent / "run", *options
        )

    return command


@torch.no_grad()
def agree(folder: Path, s: State, numbers: dict[str, int]) -> None:
    """Every history, in our run and in the twin, item by item; and nobody's history."""
    opened = Folder.open(folder)
    dataset, model = opened.dataset(), opened.model()
    ids = [str(i) for i in dataset.item_ids.series()]
    for user in [None, *dataset.user_ids.series()]:
        history = [] if user is None else [str(i) for i in dataset.history(user)]
        inputs = torch.tensor([ids.index(i) + 1 for i in history] or [0])
        found = model.scores(Batch(inputs, torch.tensor([0, len(inputs)])))[0]
        theirs = twin(s, [numbers[i] for i in history])
        assert torch.allclose(found, theirs[[numbers[i] - 1 for i in ids]], atol=1e-4, rtol=0)


def test_scores_agree_with_items_in_another_order(bring: Import, shop: Path) -> None:
    saved = {"model_state_dict": state(), "optimizer_state_dict": {"state": {}, "param_groups": []}, "epoch": 7}
    done = bring(saved, "--set", "training.max_length=200", "--set", "model.dropout=0.6")
    assert done.code == 0 and done.err == ""
    assert "12 items, width 8, 16 channels, 2 blocks" in done.out and "the last 200 items" in done.out
    agree(shop.parent / "run", state(), NUMBER)
    manifest = json.loads((shop.parent / "run" / "manifest.json").read_text())
    assert manifest["imported"]["file"]["name"] == "model.pth" and manifest["config"]["model"]["dropout"] == 0.6
    assert {p.name for p in shop.parent.iterdir()} == {"data", "model.pth", "items", "run"}


@pytest.mark.parametrize("shape", [{"blocks": 1}, {"blocks": 3}, {"width": 6, "channels": 5}], ids=str)
def test_the_shape_is_read_from_the_tensors(bring: Import, shop: Path, shape: dict[str, int]) -> None:
    assert bring(state(**shape)).code == 0
    agree(shop.parent / "run", state(**shape), NUMBER)


def test_a_state_dict_of_data_parallel_in_double_precision(bring: Import, shop: Path) -> None:
    wide = {f"module.{n}": t.to(torch.complex128 if t.is_complex() else torch.float64) for n, t in state().items()}
    assert bring(wide).code == 0
    agree(shop.parent / "run", state(), NUMBER)


LISTED = sorted(FRUIT, key=NUMBER.__getitem__)
WRITTEN = {
    "csv": "".join(f"{i},{n}\n" for i, n in NUMBER.items()),
    "csv with header": "item,number\n" + "".join(f'"{i}",{n}\n' for i, n in NUMBER.items()),
    "turned": "Number,Item\r\n" + "".join(f"{n},{i}\r\n" for i, n in NUMBER.items()) + "\r\n",
    "tsv": "".join(f"{i}\t{n}\n" for i, n in NUMBER.items()),
    "list": "\ufeff" + "\n".join(LISTED),
    "list of another system": "\r\n".join(LISTED) + "\r\n",
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_every_way_to_write_the_numbers(bring: Import, shop: Path, written: str) -> None:
    assert bring(state(), items=written).code == 0
    agree(shop.parent / "run", state(), NUMBER)


def test_items_that_are_numbers_need_no_file(bring: Import, shop: Path) -> None:
    rows = [(u, (u * 7 + k * k) % 12 + 1) for u in range(30) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=shop)
    done = bring(state(), items=None)
    assert done.code == 0 and "note      without --items, number n" in done.out
    agree(shop.parent / "run", state(), {str(k): k for k in range(1, 13)})


def test_the_run_is_like_any_other(bring: Import, shop: Path, run: Run) -> None:
    out = shop.parent / "run"
    assert bring(state()).code == 0
    report = json.loads(run("evaluate", out, "--baselines", "--json").out)
    assert report["users"] == 30 and len(report["mean_abs_lambda"]) == 2
    assert run("evaluate", out, "--split", "valid").code == 0
    rows = json.loads(run("recommend", out, "--history", "fig,kiwi", "-k", "12", "--seen", "--json").out)
    theirs = twin(state(), [NUMBER["fig"], NUMBER["kiwi"]])
    assert [r["item"] for r in rows] == [LISTED[int(k)] for k in theirs.argsort(descending=True)]
    assert rows[0]["score"] == pytest.approx(float(theirs.max()), abs=1e-4)
    assert lrurec.Recommender.of_run(out).recommend(["u3"], k=2)["rank"].to_list() == [1, 2]
    assert run("report", out).code == 0
    text = (out / "report.html").read_text()
    assert text.count("<svg") == 2 + 2 * 2 and "Training" not in text  # no curves
    for command in (["train", shop, "--out", out, "--resume"], ["evaluate", out, "--checkpoint", "last"]):
        done = run(*command)
        assert done.code == 2 and done.err.count("\n") == 1
    assert "holds weights alone" in run("train", shop, "--out", out, "--resume").err
    assert "already exists" in bring(state()).err


def without(name: str) -> State:
    return {n: t for n, t in state().items() if n != name}


FIRST = "model.lru_blocks.0.lru_layer"
WRONG_CHECKPOINTS: dict[str, tuple[Any, str]] = {
    "a number": (3, "holds neither model_state_dict nor a state dict"),
    "numbers": ({"model_state_dict": {"a": 1}}, "holds neither model_state_dict nor a state dict"),
    "nothing": ({}, "has no embedding.token.weight"),
    "no recurrence": (without(f"{FIRST}.params_log"), f"has no {FIRST}.params_log"),
    "no biases": (
        {n: t for n, t in state().items() if "proj.bias" not in n},
        f"has no {FIRST}.in_proj.bias, {FIRST}.out_proj.bias, model.lru_blocks.1.lru_layer.in_proj.bias and 1 more;",
    ),
    "more than the model": (state() | {"model.extra": torch.zeros(2)}, "holds model.extra, which"),
    "a gap": (without("model.bias") | {"bias": torch.zeros(13)}, "has no model.bias"),
    "half a prefix": (
        without("model.bias") | {"module.model.bias": torch.zeros(13)},
        "has no model.bias",
    ),
    "real instead of complex": (
        state() | {f"{FIRST}.in_proj.weight": torch.zeros(16, 8)},
        f"{FIRST}.in_proj.weight is [16, 8] (torch.float32), [16, 8] (complex) expected",
    ),
    "whole numbers": (state() | {"model.bias": torch.zeros(13, dtype=torch.int64)}, "[13] (real) expected"),
    "a narrower layer": (
        state() | {"model.lru_blocks.1.feed_forward.w_1.weight": torch.zeros(16, 8)},
        "model.lru_blocks.1.feed_forward.w_1.weight is [16, 8] (torch.float32), [32, 8] (real) expected",
    ),
    "a flat table": (state() | {"embedding.token.weight": torch.zeros(13)}, "two dimensions expected"),
    "an empty table": (state() | {"embedding.token.weight": torch.zeros(1, 8)}, "is empty"),
    "no numbers": (state() | {"model.bias": torch.full((13,), torch.nan)}, "model.bias holds values that are no"),
    "other items": (state(items=11), "has 11 items, "),
    "settings": (argparse.Namespace(lr=1e-3), "holds argparse.Namespace beside weights and was not opened"),
    "a whole module": (torch.nn.Linear(2, 2), "beside weights and was not opened"),
}


def refused(done: Ran, folder: Path, words: str) -> None:
    """Exit code 2, one line, and nothing left behind."""
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1, done
    assert words in done.err
    assert {p.name for p in folder.iterdir()} <= {"data", "model.pth", "items"}


@pytest.mark.parametrize(("saved", "words"), WRONG_CHECKPOINTS.values(), ids=WRONG_CHECKPOINTS)
def test_checkpoints_of_something_else(bring: Import, shop: Path, saved: Any, words: str) -> None:
    refused(bring(saved), shop.parent, words)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def test_a_checkpoint_that_would_run_code_runs_none(bring: Import, shop: Path) -> None:
    saved = {"model_state_dict": state(), "epoch": Trap(shop.parent / "trapped")}
    refused(bring(saved), shop.parent, "holds posix.mkdir beside weights and was not opened")


@pytest.mark.parametrize("bytes_", [b"", b"hello\nworld\n", b"PK\x03\x04 and so on", b"\x80\x02junk", b"\0" * 99])
def test_files_that_are_no_checkpoint(bring: Import, shop: Path, run: Run, bytes_: bytes) -> None:
    (shop.parent / "model.pth").write_bytes(bytes_)
    done = run("import-checkpoint", shop.parent / "model.pth", "--dataset", shop, "--out", shop.parent / "run")
    refused(done, shop.parent, "is not a file that torch.save wrote, or it is damaged")


def test_a_checkpoint_cut_short(shop: Path, run: Run) -> None:
    path = shop.parent / "model.pth"
    torch.save(state(), path)
    whole = path.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        done = run("import-checkpoint", path, "--dataset", shop, "--out", shop.parent / "run")
        refused(done, shop.parent, "or it is damaged")


def changed(**numbers: Any) -> str:
    return json.dumps(NUMBER | numbers)


WRONG_NUMBERS = {
    "missing": (json.dumps({i: n for i, n in NUMBER.items() if i != "fig"}), "no number to 1 items of the dataset"),
    "unknown": (
        json.dumps({("quince" if i == "fig" else i): n for i, n in NUMBER.items()}),
        "item 'quince' is not in the dataset",
    ),
    "too many": (changed(quince=13), "gives item 'quince' the number 13; numbers run from 1 to 12"),
    "from nothing": (json.dumps({i: n - 1 for i, n in NUMBER.items()}), "gives item 'apple' the number 0"),
    "doubled number": (changed(fig=NUMBER["kiwi"]), f"has the number '{NUMBER['kiwi']}' more than once"),
    "doubled item": ("\n".join([*LISTED[:11], "fig"]), "has the item 'fig' more than once"),
    "doubled key": ('{"fig": 1, "fig": 2}', "has the item 'fig' more than once"),
    "text for a number": (changed(fig="1"), "gives item 'fig' no whole number"),
    "true for a number": (changed(fig=True), "gives item 'fig' no whole number"),
    "nested": ('{"smap": {"fig": 1}}', "gives item 'smap' no whole number"),
    "half of JSON": ('{"fig": 1', "is not JSON"),
    "deep JSON": ('{"a":' * 100_000, "is not JSON"),
    "a strange header": ("raw,index\n" + WRITTEN["csv"], "line 1 should be item and number, not 'raw,index'"),
    "three columns": ("fig,1\nkiwi,2,x\n", "line 2 should be item and number, not 'kiwi,2,x'"),
    "a long number": ("fig," + "9" * 5000, "line 1 should be item and number"),
    "an unfinished list": ("\n".join(LISTED[:5]), "gives no number to 7 items of the dataset, such as"),
    "a hole in the list": ("\n".join([*LISTED[:5], "", *LISTED[6:]]), "item '' is not in the dataset"),
    "nothing": ("\n", "is empty"),
}


@pytest.mark.parametrize(("written", "words"), WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_numbers_that_do_not_fit(bring: Import, shop: Path, written: str, words: str) -> None:
    refused(bring(state(), items=written), shop.parent, words)


def test_other_mistakes(bring: Import, shop: Path, run: Run, tmp_path: Path) -> None:
    refused(bring(state(), items=None), shop.parent, "not the numbers 1 to 12, so pass --items FILE: the 'smap'")
    refused(bring(state(), "--items", tmp_path / "none", items=None), shop.parent, "none does not exist")
    refused(bring(state(), "--set", "model.width=8"), shop.parent, "model.width is given by the checkpoint")
    refused(bring(state(), "--set", "model.mixer=s4"), shop.parent, "model.mixer is given by the checkpoint")
    refused(bring(state(), "--set", "model.droput=0.5"), shop.parent, "did you mean 'dropout'")
    (tmp_path / "items").write_bytes(b"caf\xe9\n")
    refused(bring(state(), "--items", tmp_path / "items", items=None), shop.parent, "is not UTF-8")
    arguments = ["--dataset", shop, "--out", tmp_path / "run"]
    refused(run("import-checkpoint", tmp_path / "none.pth", *arguments), shop.parent, "none.pth does not exist")
    refused(run("import-checkpoint", shop, *arguments), shop.parent, "cannot be read (Is a directory)")
    refused(bring(state(), "--dataset", tmp_path / "absent"), shop.parent, "does not exist")
    done = bring(state(), "--out", "/proc/nowhere/run")
    refused(done, shop.parent, "cannot be written")


def test_padding_is_the_start(shop: Path, bring: Import) -> None:
    """Their row 0 is the vector from which ours predicts a first item; its bias belongs to no item and is gone."""
    assert bring(state()).code == 0
    model = Folder.open(shop.parent / "run").model()
    assert torch.equal(model.get_parameter("embedding")[0], state()["embedding.token.weight"][0])
    assert np.allclose(sorted(model.get_parameter("bias").tolist()), sorted(state()["model.bias"][1:].tolist()))
