"""The package as it is installed: extras, types, and what importing it drags in."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import lrurec

ROOT = Path(__file__).parents[1]


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def test_torch_is_asked_for_by_training_alone_and_exactly() -> None:
    asking = {name: [r for r in needs if r.startswith("torch")] for name, needs in extras().items()}
    assert asking.pop("train") == ["torch==2.13.0"]
    assert not any(asking.values())


def test_all_brings_every_part() -> None:
    assert extras()["all"] == ["lrurec[train,reproduce,serve,cluster]"]


def test_every_dependency_is_pinned_once() -> None:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    pinned = [x.split("==")[0].lower().replace("_", "-") for x in lines]
    assert all(x.count("==") == 1 for x in lines)
    assert len(pinned) == len(set(pinned))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for needs in [*extras().values(), build]:
        for requirement in needs:
            name = requirement.split("[")[0].split(">")[0].split("=")[0].lower().replace("_", "-")
            assert name == "lrurec" or name in pinned, requirement


def test_every_installed_package_has_the_pinned_version() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            try:
                found = metadata.version(name).split("+")[0]
            except metadata.PackageNotFoundError:
                continue
            assert found == version, name


def test_types_are_shipped() -> None:
    assert (Path(lrurec.__file__).parent / "py.typed").exists()


def test_preparing_imports_neither_torch_nor_pandas(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,2\n1,3\n")
    script = (
        "import sys, lrurec\n"
        "assert 'polars' not in sys.modules, 'the bare package must stay light'\n"
        "print(lrurec.load_events(sys.argv[1]))\n"
        "assert not {'torch', 'pandas', 'numba', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log.csv")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 users, 2 items, 2 interactions" in done.stdout


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(lrurec, "no_such_thing")
