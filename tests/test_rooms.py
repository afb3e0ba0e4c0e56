"""Who may import whom: the table of the house, held by walking the imports."""

import ast
from pathlib import Path

import lrurec

SRC = Path(lrurec.__file__).parent

# room: the rooms it may import. errors, config, folder, arrays, ids, kernels and the bare package may be imported anywhere.
MAY_IMPORT = {
    "data": {"data"},
    "nn": {"nn"},
    "memory": {"memory"},
    "models": {"nn", "models", "memory"},
    "evaluation": {"models", "data", "evaluation", "nn"},
    "training": {"models", "data", "evaluation", "training", "nn", "memory"},
    "export": {"models", "data", "training", "serving", "memory"},
    "serving": {"serving", "memory"},
    "experiments": {"data", "models", "evaluation", "training", "export", "serving", "experiments"},
    "planning": {"data", "memory", "models", "nn", "evaluation", "training", "export", "serving", "planning"},
    "recommender": {"data", "models", "evaluation", "training", "export", "recommender"},
    "cli": {
        "data",
        "models",
        "evaluation",
        "training",
        "export",
        "serving",
        "experiments",
        "planning",
        "recommender",
        "cli",
    },
}
ANYWHERE = {"errors", "config", "folder", "arrays", "ids", "kernels"}
# Packages that only some rooms may import.
HEAVY = {
    "torch": {"nn", "models", "evaluation", "training", "export", "experiments", "planning", "recommender"},
    "numba": {"kernels", "nn", "serving"},
    "polars": {"ids", "data", "evaluation", "recommender", "experiments"},
    "rich": {"cli"},
    "pandas": set[str](),
    "tensorboard": {"training"},
    "mlflow": {"training"},
}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
            if node.module == "lrurec":
                found |= {f"lrurec.{alias.name}" for alias in node.names if (SRC / alias.name).exists()}
    return found


def test_rooms_import_only_what_the_table_allows() -> None:
    for path in SRC.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in MAY_IMPORT or room in ANYWHERE, f"{path}: a room that the table does not know"
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "lrurec" and len(parts) > 1 and parts[1] not in ANYWHERE:
                assert parts[1] in MAY_IMPORT.get(room, set()), f"{path} may not import {name}"
            if parts[0] in HEAVY:
                assert room in HEAVY[parts[0]], f"{path} may not import {name}"


def test_rooms_that_all_may_enter_depend_on_none() -> None:
    for name in ANYWHERE:
        files = [*SRC.glob(f"{name}.py"), *SRC.glob(f"{name}/*.py")]
        used = {n.split(".")[1] for path in files for n in imports_of(path) if n.startswith("lrurec.")}
        assert used <= ANYWHERE


def test_no_import_cycle_between_modules() -> None:
    graph = {}
    for path in SRC.rglob("*.py"):
        if path.name == "__init__.py":
            continue
        module = "lrurec." + ".".join(path.relative_to(SRC).with_suffix("").parts)
        graph[module] = {n for n in imports_of(path) if n.startswith("lrurec.")}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"cycle: {' -> '.join((*trail, module))}"
        for other in graph.get(module, set()):
            visit(other, (*trail, module))

    for module in graph:
        visit(module, ())
