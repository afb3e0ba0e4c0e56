"""Shared by the commands: a parser whose errors are one line, and whose help keeps its examples' lines."""

import argparse
import difflib
from typing import NoReturn, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # argparse has no public name for it
CHECKPOINT = "the weights that validated best (default), or those of the last validation"


class Parser(argparse.ArgumentParser):
    """One-line errors with a hint; no abbreviations, so that a script never changes its meaning."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: --"):
            given = message.split()[2]
            known = [o for o in self._option_string_actions if o.startswith("--")]
            near = difflib.get_close_matches(given, known, n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        elif "invalid choice: " in message:
            given, _, known_text = message.partition("invalid choice: ")[2].partition(" (choose from ")
            names = [n.strip(" ')") for n in known_text.split(",")]
            near = difflib.get_close_matches(given.strip("'"), names, n=1)
            message = f"unknown {given}; " + (f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}")
        self.exit(2, f"lrurec: {message} (see: {self.prog} --help)\n")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        options, extra = self.parse_known_args(args, namespace)
        if extra:
            getattr(options, "parser", self).error(f"unrecognized arguments: {' '.join(extra)}")
        return options


def add_settings(p: argparse.ArgumentParser) -> None:
    """With what a model is trained: the same options wherever that is asked."""
    p.add_argument("--model", metavar="NAME", help="one of lrurec models (default: lrurec)")
    p.add_argument("--recipe", metavar="NAME", help="paper, fast, best or best-small (default: fast)")
    p.add_argument("--config", metavar="FILE", help="settings as TOML, over the recipe's")
    p.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="one setting, over all else"
    )


def positive(text: str) -> int:
    """An integer of 1 or more; 1_000, 1e6 and 66.8e6 are understood."""
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not 1 <= value < float("inf") or value != int(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(value)


def yes_no(text: str) -> bool:
    """yes or no."""
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither yes nor no")
    return text == "yes"
