"""All tables and figures that were made, on one page. Knows files of Markdown, not what is in them."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from lrurec.folder import write_text


class Known(Protocol):
    """What is asked of a target."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def result(self) -> str: ...


def write_page(results: Path, page: Path, targets: Iterable[Known]) -> None:
    """The pages of a folder of results as one; of what is not there, the command that makes it."""
    lines = [
        "# Results",
        "",
        "Every table and figure of the paper, as `lrurec reproduce` made it here. Each says with which command.",
    ]
    missing = []
    for target in targets:
        path = results / f"{target.result}.md"
        if path.exists():
            lines += [
                "",
                _demoted(path.read_text(encoding="utf-8"), os.path.relpath(results, page.parent), target).rstrip(),
            ]
        else:
            missing.append(target)
    if missing:
        lines += ["", "## Not made here yet", ""]
        lines += [f"- {target.about}: `lrurec reproduce {target.name}`" for target in missing]
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, "\n".join(lines) + "\n")


def _demoted(text: str, where: str, target: Known) -> str:
    """A page as a chapter: headings one level down, pictures where they are."""
    text = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE)
    return re.sub(rf"\]\({re.escape(target.name)}", f"]({where}/{target.result}", text)
