"""The layout of an audit's findings in a terminal."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from dispatcher.audit import EXAMPLES, Found, Report
from dispatcher.audit.invariants import UNSEEN
from dispatcher.management.key_table import Paint, rows

GOOD: Final[dict[str, Any]] = {"fg": "green"}
BAD: Final[dict[str, Any]] = {"fg": "red", "opts": ("bold",)}
MILD: Final[dict[str, Any]] = {"fg": "yellow"}


def render(report: Report, paint: Paint, *, repairs: bool) -> Iterator[str]:
    """Yield a table of all checks, the findings, the verdict."""
    repaired = [("Repaired", [str(found.repaired) for found in report.found])] if repairs else []
    header, *lines = rows(
        [
            ("Check", [found.check.name for found in report.found]),
            ("Invariant", [str(found.check.invariant) for found in report.found]),
            ("Findings", [f"{found.count:,}" for found in report.found]),
            *repaired,
        ]
    )
    yield paint(header, opts=("bold",))
    for found, line in zip(report.found, lines, strict=True):
        yield paint(line, **BAD if found.count else MILD if found.repaired else {})
    for found in report.found:
        if found.count:
            yield from _example_lines(found, partial(paint, **BAD))
    for note in report.notes:
        if note.count:
            yield from _example_lines(note, partial(paint, **MILD))
    yield f"\n{UNSEEN}\n"
    yield from _verdict(report, paint, repairs=repairs)


def _example_lines(found: Found, paint: Paint) -> Iterator[str]:
    what = "note" if found.check.invariant is None else f"invariant {found.check.invariant}"
    yield paint(f"\n{found.check.name} ({what}), {found.count:,}: {found.check.sentence}")
    for finding in found.findings[:EXAMPLES]:
        facts = ", ".join(f"{name} {_word(fact)}" for name, fact in finding.facts.items())
        yield f"  {finding.what}: {facts}"
    if found.count > EXAMPLES:
        yield f"  and {found.count - EXAMPLES:,} more"


def _word(fact: object) -> str:
    return "-" if fact is None else str(fact)


def _verdict(report: Report, paint: Paint, *, repairs: bool) -> Iterator[str]:
    if repairs:
        yield paint(f"Repaired: {report.repaired:,} (expected: 0)", **MILD if report.repaired else GOOD)
    count = sum(found.count for found in report.found)
    at = f"{report.checked_at:%Y-%m-%d %H:%M:%S %Z}"
    if report.is_ok:
        yield paint(f"✓ Every invariant that rows can show holds, {at}", **GOOD)
    else:
        yield paint(f"✗ {count:,} finding{'' if count == 1 else 's'}, {at}", **BAD)
