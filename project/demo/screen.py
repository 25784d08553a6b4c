"""What the demo shows: a live table in a terminal, elsewhere a line now and then; at the end the summary."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from project.demo.summary import KeyVerdict, Summary
from project.screen import mark, show_verdict, table

if TYPE_CHECKING:
    # Its models need Django, which is set up later.
    from dispatcher.reports import KeyStatus

LINE_EVERY = 3.0
BAR = 14


@dataclass(frozen=True, kw_only=True)
class Board:
    """All keys now, and how many of the calls have ended."""

    keys: "Sequence[KeyStatus]"
    ended: int
    sent: int
    seconds: float

    @property
    def progress(self) -> str:
        """Return in words how far it is."""
        return f"{self.seconds:5.1f} s  {self.ended:3} of {self.sent} calls done"


Show = Callable[[Board], None]


@contextmanager
def showing(console: Console) -> Iterator[Show]:
    """Yield what shows a board: by redrawing a table, or as lines where nothing can be redrawn."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda board: live.update(_keys(board), refresh=True)
    else:
        yield _Lines(console)


class _Lines:
    """Shows one board every few seconds as a line, and the one in which all has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.due_at = 0.0

    def __call__(self, board: Board) -> None:
        now = time.monotonic()
        if now < self.due_at and board.ended < board.sent:
            return
        self.due_at = now + LINE_EVERY
        waiting = [f"{key.name} {key.in_flight}+{key.waiting}" for key in board.keys if key.waiting]
        keys = f"   in flight + waiting: {', '.join(waiting)}" if waiting else ""
        self.console.print(board.progress + keys, soft_wrap=True)


def show_summary(console: Console, summary: Summary) -> None:
    """Print the figures of every key, the totals, and the verdict in words."""
    totals = summary.totals
    console.print(_figures(summary))
    console.print(
        f"{totals.sent} calls sent, {totals.lost} lost, {totals.duplicates} duplicates, "
        f"{totals.violations} violations, {totals.rejected_429} answers 429"
    )
    ways = summary.deliveries
    console.print(
        f"{ways.get('direct', 0)} calls were taken from PostgreSQL by the worker (direct), "
        f"{ways.get('broker', 0)} came through the broker"
    )
    console.print(
        f"Spacing is that of setting out, and may be {summary.tolerance_s * 1000:g} ms short; "
        f"the longest way took {summary.longest_way_s * 1000:.1f} ms"
    )
    console.print(f"The small tenant was done when the flood had {summary.flood_before_drip} calls done")
    show_verdict(console, summary.faults, f"Every limit held, every call was done once ({summary.seconds:.1f} s)")


def _keys(board: Board) -> Table:
    keys = table(board.progress, "Key", "State", "In flight", "In the window", figures=["Waiting"])
    for key in board.keys:
        in_flight = _bar(key.in_flight, key.policy.concurrency)
        used = _bar(key.used, key.policy.rate.limit) if key.policy.rate else ""
        keys.add_row(key.name, key.state.label, in_flight, used, str(key.waiting))
    return keys


def _bar(used: int, limit: int | None) -> RenderableType:
    """Return a bar with its figures, or the figure alone if nothing limits it."""
    if limit is None:
        return str(used)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        ProgressBar(total=limit, completed=used, width=BAR, complete_style="green", finished_style="yellow"),
        f"{used}/{limit}",
    )
    return grid


def _figures(summary: Summary) -> Table:
    figures = ("Seen", "At once", "In window", "Spacing", "429", "")
    seen = table("What the third parties saw", "Key", "Limits", figures=figures)
    # The limits give way where the terminal is narrow: the figures and the verdict are what the demo is for.
    seen.columns[1].no_wrap = False
    for name, verdict in summary.keys.items():
        spacing = verdict["least_spacing_s"] if verdict["throttle"] else None
        seen.add_row(
            name,
            _limits(verdict),
            str(verdict["requests"]),
            str(verdict["most_at_once"]),
            str(verdict["most_in_window"]) if verdict["rate"] else "",
            f"{spacing * 1000:.1f} ms" if spacing is not None else "",
            str(verdict["rejected_429"]),
            mark(is_ok=verdict["ok"]),
        )
    return seen


def _limits(verdict: KeyVerdict) -> str:
    """Return a key's limits in words."""
    words, rate, throttle = [], verdict["rate"], verdict["throttle"]
    if verdict["concurrency"] is not None:
        words.append(f"{verdict['concurrency']} at once")
    if rate is not None:
        words.append(f"{rate['limit']} in {rate['period_s']:g} s")
    if throttle is not None:
        words.append(f"{throttle['period_s'] / throttle['limit'] * 1000:g} ms apart")
    return ", ".join(words)
