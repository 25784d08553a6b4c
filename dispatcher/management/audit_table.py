"""The layout of an audit's findings in a terminal."""

from collections.abc import Iterator
from typing import Final

from dispatcher.audit import EXAMPLES, Found, Report
from dispatcher.audit.invariants import UNSEEN
from dispatcher.management import key_table
from dispatcher.management.key_table import Column

GOOD: Final = "green"
BAD: Final = "bold red"
MILD: Final = "yellow"


def lines(report: Report, *, repairs: bool) -> Iterator[tuple[str, str]]:
    """Yield each line with its colour: a table of all checks, the findings, the verdict."""
    titles, *rows = key_table.plain(_columns(report, repairs=repairs)).splitlines()
    yield titles, "bold"
    for row, found in zip(rows, report.found, strict=True):
        yield row, BAD if found.count else MILD if found.repaired else ""
    for found in report.found:
        if found.count:
            yield from _example_lines(found, BAD)
    for note in report.notes:
        if note.count:
            yield from _example_lines(note, MILD)
    yield "", ""
    yield UNSEEN, ""
    yield from _verdict(report, repairs=repairs)


def _columns(report: Report, *, repairs: bool) -> list[Column]:
    repaired = Column(title="Repaired", cells=[str(found.repaired) for found in report.found], is_right=True)
    return [
        Column(title="Check", cells=[found.check.name for found in report.found]),
        Column(title="Invariant", cells=[str(found.check.invariant) for found in report.found], is_right=True),
        Column(title="Findings", cells=[f"{found.count:,}" for found in report.found], is_right=True),
        *([repaired] if repairs else []),
    ]


def _example_lines(found: Found, color: str) -> Iterator[tuple[str, str]]:
    yield "", ""
    what = "note" if found.check.invariant is None else f"invariant {found.check.invariant}"
    yield f"{found.check.name} ({what}), {found.count:,}: {found.check.sentence}", color
    for finding in found.findings[:EXAMPLES]:
        facts = ", ".join(f"{name} {_word(fact)}" for name, fact in finding.facts.items())
        yield f"  {finding.what}: {facts}", ""
    if found.count > EXAMPLES:
        yield f"  and {found.count - EXAMPLES:,} more", ""


def _word(fact: object) -> str:
    return "-" if fact is None else str(fact)


def _verdict(report: Report, *, repairs: bool) -> Iterator[tuple[str, str]]:
    yield "", ""
    if repairs:
        yield f"Repaired: {report.repaired:,} (expected: 0)", MILD if report.repaired else GOOD
    count = sum(found.count for found in report.found)
    at = f"{report.checked_at:%Y-%m-%d %H:%M:%S %Z}"
    if report.is_ok:
        yield f"✓ Every invariant that rows can show holds, {at}", GOOD
    else:
        yield f"✗ {count:,} finding{'' if count == 1 else 's'}, {at}", BAD
