"""What the trial shows: a line for each fault, and at the end the figures and what did not hold."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from project.screen import mark, show_verdict, table
from trials.chaos.verdict import Spread, Verdict

if TYPE_CHECKING:
    from trials.chaos.trial import Outcome


def show(console: Console, outcome: "Outcome") -> None:
    """Print the figures, how soon each kind of fault was over, and the verdict in words."""
    verdict = outcome.verdict
    console.print(_recovery(verdict))
    console.print(_figures(verdict))
    for remark in outcome.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    show_verdict(console, verdict.failures, "Nothing was lost, nothing ran twice, no limit was broken")


def _figures(verdict: Verdict) -> Table:
    figures = table("What came of it", "", figures=["", ""])
    figures.add_row("calls sent", str(verdict.sent), "")
    for name, figure in (
        ("calls lost", verdict.lost),
        ("started twice for one ticket", verdict.double_starts),
        ("limits broken at the witness", verdict.violations),
        ("attempts spent wrongly", verdict.wrong_attempts),
        ("calls that ended as they should not", verdict.wrong_ends),
    ):
        figures.add_row(name, str(figure), mark(is_ok=not figure))
    return figures


def _recovery(verdict: Verdict) -> Table:
    title = "Seconds until service, from the end of a fault (of a kill, from the kill)"
    recovery = table(title, "Fault", figures=["median", "worst"])
    spreads: dict[str, Spread] = {**verdict.recovery["by_kind"], "all": verdict.recovery}
    for kind, spread in spreads.items():
        recovery.add_row(kind.replace("_", " "), _number(spread["median"]), _number(spread["worst"]))
    return recovery


def _number(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
