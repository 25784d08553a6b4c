"""What the soak found: a table for the terminal, JSON for tools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from project.screen import mark, number, table
from trials.soak.run import Course
from trials.soak.verdict import Finding, Reading, judge, judge_load, judge_sizes, judge_work

COMPARED = {
    "steady": ("start", "middle", "end"),
    "when an open transaction is gone": ("end", "after", "later"),
    "what it left behind is used again": ("after", "later"),
}
"""The readings that each part of the verdict compares."""


def findings(course: Course, *, rate: float, backlog: int) -> dict[str, list[Finding]]:
    """Judge the steady part, and what an open transaction leaves behind.

    Every row that is replaced while it is open has to be kept, so tables grow by what was written meanwhile. That is
    no verdict on anybody; that they grow no further after it is one.
    """
    steady, left, sizes = ([course[label] for label in labels] for labels in COMPARED.values())
    found = (
        [*judge_load(steady, rate=rate, backlog=backlog), *judge(*steady)],
        [*judge_load(left, rate=rate, backlog=backlog), *judge_work(*left)],
        judge_sizes(*sizes),
    )
    return dict(zip(COMPARED, found, strict=True))


def show(console: Console, course: Course, found: Mapping[str, Sequence[Finding]]) -> None:
    """Print the readings and the verdicts."""
    console.print(_readings(course.values()))
    for part, labels in COMPARED.items():
        console.print(_verdicts(part, labels, found[part]))


def as_json(course: Course, found: Mapping[str, Sequence[Finding]], *, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything for tools. asked: minutes, rate, backlog and delivery."""
    return {
        "ok": all(finding.ok for part in found.values() for finding in part),
        **asked,
        "readings": {name: asdict(reading) for name, reading in course.items()},
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
        values = map(number, finding.values)
        verdicts.add_row(finding.name, *values, f"{finding.ratio:.2f}", f"{finding.bound:g}", mark(is_ok=finding.ok))
    return verdicts
