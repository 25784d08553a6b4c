"""The layout of an audit's findings in a terminal."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from dispatcher.audit import EXAMPLES, Found, Report
from dispatcher.audit.invariants import UNSEEN
from dispatcher.management.key_table import rows

GOOD: Final = "green"
BAD: Final = "bold red"
MILD: Final = "yellow"


def render(report: Report, *, repairs: bool) -> Iterator[RenderableType]:
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
    yield Text(header, style="bold")
    for found, line in zip(report.found, lines, strict=True):
        yield Text(line, style=BAD if found.count else MILD if found.repaired else "")
    for found in report.found:
        if found.count:
            yield from _example_lines(found, BAD)
    for note in report.notes:
        if note.count:
            yield from _example_lines(note, MILD)
    yield Text(f"\n{UNSEEN}\n")
    yield from _verdict(report, repairs=repairs)


def _example_lines(found: Found, color: str) -> Iterator[RenderableType]:
    what = "note" if found.check.invariant is None else f"invariant {found.check.invariant}"
    yield Text(f"\n{found.check.name} ({what}), {found.count:,}: {found.check.sentence}", style=color)
    for finding in found.findings[:EXAMPLES]:
        facts = ", ".join(f"{name} {_word(fact)}" for name, fact in finding.facts.items())
        yield Text(f"  {finding.what}: {facts}")
    if found.count > EXAMPLES:
        yield f"  and {found.count - EXAMPLES:,} more"


def _word(fact: object) -> str:
    return "-" if fact is None else str(fact)


def _verdict(report: Report, *, repairs: bool) -> Iterator[RenderableType]:
    if repairs:
        yield Text(f"Repaired: {report.repaired:,} (expected: 0)", style=MILD if report.repaired else GOOD)
    count = sum(found.count for found in report.found)
    at = f"{report.checked_at:%Y-%m-%d %H:%M:%S %Z}"
    if report.is_ok:
        yield Text(f"✓ Every invariant that rows can show holds, {at}", style=GOOD)
    else:
        yield Text(f"✗ {count:,} finding{'' if count == 1 else 's'}, {at}", style=BAD)
