"""The command line itself: help with examples, the doctor, and a reader that goes away."""

import json
import re
import subprocess
import sys

import pytest

from conftest import Run
from lrurec.cli.console import as_text

COMMANDS = [
    [],
    ["prepare"],
    ["data", "list"],
    ["data", "fetch"],
    ["data", "synth"],
    ["data", "describe"],
    ["train"],
    ["evaluate"],
    ["compare"],
    ["recommend"],
    ["report"],
    ["search"],
    ["reproduce"],
    ["import-checkpoint"],
    ["export"],
    ["doctor"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(run: Run, command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    assert "examples:\n  lrurec" in done.out


def test_no_command(run: Run) -> None:
    for command in ([], ["data"]):
        done = run(*command)
        assert done.code == 2 and done.err.count("\n") == 1


def test_no_abbreviations(run: Run) -> None:
    assert "did you mean --json?" in run("doctor", "--jso").err


def test_a_misspelt_command(run: Run) -> None:
    assert "did you mean 'prepare'?" in run("prepar").err
    assert "did you mean 'describe'?" in run("data", "descrbe").err


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("lrurec 0.")


def test_doctor(run: Run) -> None:
    told = run("doctor").out
    assert "cores" in told and "polars" in told and "prepare data  ready" in told
    assert max(map(len, told.splitlines())) <= 100
    found = json.loads(run("doctor", "--json").out)
    assert found["parts"]["prepare data"]["missing"] == []
    assert found["cores"] >= 1 and found["memory"] > 1e8
    for name, part in found["parts"].items():
        if part["missing"]:
            assert f"install the extra '{part['extra']}'" in told, name


def test_doctor_knows_every_extra() -> None:
    from lrurec.cli.doctor import PARTS
    from test_package import extras

    found: dict[str, set[str]] = {}
    for extra, needs in PARTS.values():  # some need only a part of their extra
        found.setdefault(extra, set()).update(name.replace("_", "-") for name in needs)
    for extra, packages in found.items():
        wanted = {re.split(r"[>=\[]", r)[0].replace("_", "-") for r in extras()[extra]}
        assert wanted - {"lrurec"} == packages


def test_a_reader_that_goes_away() -> None:
    command = f"{sys.executable} -m lrurec.cli.main data list --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "[\n" and done.stderr == ""


def test_a_page_for_a_terminal() -> None:
    page = "# T\n\n|x| is 1\n\n| a | b |\n|---|---:|\n| **long** | 1 |\n\n![p](p.png)\n\n    run\n"
    assert as_text(page) == "# T\n\n|x| is 1\n\na     b\n----  -\nlong  1\n\n    run"
