"""What the trial shows: a line for each fault, and at the end the figures and what did not hold."""

import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from trials.chaos.verdict import Spread, Verdict

if TYPE_CHECKING:
    from trials.chaos.trial import Outcome

WIDTH = 120
"""Columns, without a known width: a log keeps long lines."""


def console() -> Console:
    """Return the console: as wide as the terminal, or wide enough if there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def show(console: Console, outcome: "Outcome") -> None:
    """Print the figures, how soon each kind of fault was over, and the verdict in words."""
    verdict = outcome.verdict
    console.print(_recovery(verdict))
    console.print(_figures(verdict))
    for remark in outcome.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    for failure in verdict.failures:
        console.print(f"✗ {failure}", style="red", markup=False, soft_wrap=True)
    if verdict.is_ok:
        console.print("✓ Nothing was lost, nothing ran twice, no limit was broken", style="green")


def _figures(verdict: Verdict) -> Table:
    table = _table("What came of it")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("")
    table.add_row("calls sent", str(verdict.sent), "")
    for name, figure in (
        ("calls lost", verdict.lost),
        ("started twice for one ticket", verdict.double_starts),
        ("limits broken at the witness", verdict.violations),
        ("attempts spent wrongly", verdict.wrong_attempts),
        ("calls that ended as they should not", verdict.wrong_ends),
    ):
        table.add_row(name, str(figure), "[red]✗[/]" if figure else "[green]✓[/]")
    return table


def _recovery(verdict: Verdict) -> Table:
    table = _table("Seconds until service, from the end of a fault (of a kill, from the kill)")
    for heading in ("Fault", "median", "worst"):
        table.add_column(heading, justify="left" if heading == "Fault" else "right")
    spreads: dict[str, Spread] = {**verdict.recovery["by_kind"], "all": verdict.recovery}
    for kind, spread in spreads.items():
        table.add_row(kind.replace("_", " "), _number(spread["median"]), _number(spread["worst"]))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _number(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
