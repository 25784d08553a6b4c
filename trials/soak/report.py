"""What the soak found: a table for the terminal, JSON for tools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from project.screen import mark, table
from trials.soak.run import Course
from trials.soak.verdict import Finding, Reading, judge, judge_load, judge_sizes, judge_work

_WHOLE = 100
"""Figures from here on are printed without decimals."""


STEADY = "steady"
LEFT = "when an open transaction is gone"
SIZES = "what it left behind is used again"


def findings(course: Course, *, rate: float, backlog: int) -> dict[str, list[Finding]]:
    """Judge the steady part, and what an open transaction leaves behind.

    Every row that is replaced while it is open has to be kept, so tables grow by what was written meanwhile. That is
    no verdict on anybody; that they grow no further after it is one.
    """
    steady = [course.start, course.middle, course.end]
    return {
        STEADY: [*judge_load(steady, rate=rate, backlog=backlog), *judge(*steady)],
        LEFT: [
            *judge_load([course.end, course.after, course.later], rate=rate, backlog=backlog),
            *judge_work(course.end, course.after, course.later),
        ],
        SIZES: judge_sizes(course.after, course.later),
    }


_COLUMNS = {
    STEADY: ("start", "middle", "end"),
    LEFT: ("end", "after", "later"),
    SIZES: ("after", "later"),
}


def show(console: Console, course: Course, found: Mapping[str, Sequence[Finding]]) -> None:
    """Print the readings and the verdicts."""
    readings = list(vars(course).values())
    console.print(_readings(readings))
    for part, columns in _COLUMNS.items():
        console.print(_verdicts(part, columns, found[part]))


def as_json(course: Course, found: Mapping[str, Sequence[Finding]], *, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything for tools. asked: minutes, rate, backlog and delivery."""
    return {
        "ok": all(finding.ok for part in found.values() for finding in part),
        **asked,
        "readings": {name: asdict(reading) for name, reading in vars(course).items()},
        "findings": {part: [asdict(finding) for finding in each] for part, each in found.items()},
    }


def _readings(readings: Iterable[Reading]) -> Table:
    figures = ("median trip", "worst", "idle trip", "by idle", "median send", "calls/s", "waiting")
    read = table("What was read", "Reading", figures=[*figures, "oldest snapshot", "MB", "dead rows"])
    for each in readings:
        read.add_row(
            each.label,
            f"{each.trip_ms:.1f} ms",
            f"{each.worst_trip_ms:.0f} ms",
            f"{each.idle_trip_ms:.1f} ms",
            f"{each.trip_ratio:.2f}",
            f"{each.send_ms:.1f} ms",
            f"{each.rate:.0f}",
            f"{each.waiting:,}",
            f"{each.horizon:,}",
            f"{sum(each.bytes.values()) / 1e6:.1f}",
            f"{sum(each.dead.values()):,}",
        )
    return read


def _verdicts(part: str, labels: Iterable[str], found: Iterable[Finding]) -> Table:
    verdicts = table(part, "Figure", figures=[*labels, "ratio", "bound", ""])
    for finding in found:
        values = map(_number, finding.values)
        verdicts.add_row(finding.name, *values, f"{finding.ratio:.2f}", f"{finding.bound:g}", mark(is_ok=finding.ok))
    return verdicts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE or value == int(value) else f"{value:.3g}"
