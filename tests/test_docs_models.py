"""docs/models.md tells the truth: its table is that of `lrurec models`, its example trains and keeps the contract."""

import importlib.util
import re
import sys
from pathlib import Path

import polars as pl
import pytest

import lrurec
import test_contract as contract
from lrurec.models.base import RecurrentModel
from lrurec.models.registry import MODELS
from test_contract import Case

TEXT = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def rows() -> dict[str, list[str]]:
    """The first table: a name to the rest of its cells."""
    lines = TEXT[TEXT.index("| name | year") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def test_the_table_says_what_the_models_say() -> None:
    told = rows()
    for name, model in MODELS.items():
        card, steps = model.card, "yes" if issubclass(model, RecurrentModel) else "no"
        assert told[name] == [str(card.year or "-"), card.paper, card.training, card.update, steps], name
    assert [name for name in told if name in MODELS] == list(MODELS)  # in their order


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The example as the reader would add it: a file, a line of the registry, a line of the tests."""
    assert len(EXAMPLE) == 1
    file = tmp_path / "decay.py"
    file.write_text(EXAMPLE[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("decay", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "decay", module)
    spec.loader.exec_module(module)
    assert '"decay": Decay,' in TEXT
    monkeypatch.setitem(MODELS, "decay", module.Decay)
    settings = re.search(r'Case\("decay", \((.*?)\)\)', TEXT)
    assert settings is not None
    return Case("decay", tuple(re.findall(r'"(.*?)"', settings[1])))


@pytest.fixture
def log() -> lrurec.Dataset:
    """The next item is always the last one + 1."""
    cycle = [(u, (u + k) % contract.ITEMS) for u in range(contract.USERS) for k in range(9)]
    return lrurec.load_events(pl.DataFrame(cycle, schema=["user", "item"], orient="row"))


def test_the_example_learns(case: Case, log: lrurec.Dataset, tmp_path: Path) -> None:
    contract.test_it_learns_what_its_kind_can_express(case, "cycle", {"cycle": log}, tmp_path)


def test_the_example_keeps_the_contract(case: Case, log: lrurec.Dataset, tmp_path: Path) -> None:
    contract.test_the_past_does_not_see_the_future(case)
    contract.test_a_history_alone_scores_as_it_does_among_others(case)
    contract.test_somebody_without_a_history_and_somebody_unknown(case)
    contract.test_gradients_reach_every_parameter(case)
    contract.test_dropout_comes_from_the_keys_alone(case)
    contract.test_saved_and_opened_it_scores_the_same(case, {"cycle": log}, tmp_path)
    contract.test_same_seed_same_result(case, {"cycle": log}, tmp_path / "again")
    contract.test_its_settings_are_recorded_with_its_name(case)
