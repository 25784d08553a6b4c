"""manage.py dispatcher_audit: check every invariant in the live database; exits 0 if all hold, 1 if not."""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher.audit import EXAMPLES, Found, Report, audit
from dispatcher.audit.invariants import UNSEEN
from dispatcher.management.command import console, explained
from dispatcher.management.key_table import Paint, rows

LONGEST: Final = 600.0
BROKEN: Final = 1
UNKNOWN: Final = 2
_GOOD: Final[dict[str, Any]] = {"fg": "green"}
_BAD: Final[dict[str, Any]] = {"fg": "red", "opts": ("bold",)}
_MILD: Final[dict[str, Any]] = {"fg": "yellow"}


class Command(BaseCommand):
    """Check every invariant on a live database."""

    help = (
        "Check every invariant of the dispatcher on a live database. Exits 0 if all hold, 1 if not (with --repair: if "
        "anything is left), 2 if it could not check."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--repair", action="store_true", help="Repair what can be repaired, count it, and check again. Expected: 0."
        )
        parser.add_argument("--json", action="store_true", dest="is_json", help="Print JSON, for other programs.")
        parser.add_argument(
            "--settle",
            type=float,
            metavar="SECONDS",
            help="How long a state that may be transient must last to be a finding; by default two ticks.",
        )

    @explained(returncode=UNKNOWN)
    def handle(
        self,
        *_: Any,
        repair: bool = False,
        is_json: bool = False,
        settle: float | None = None,
        no_color: bool = False,
        **__: Any,
    ) -> None:
        """Print the findings. Raises CommandError for a bad argument, or if the database is unavailable."""
        report = audit(repair=repair, settle=_span(settle))
        with console(self.stdout, no_color=no_color) as screen:
            lines = _render(report, screen.paint, repairs=repair)
            text = json.dumps(report.as_json(), indent=2) if is_json else "\n".join(lines)
            self.stdout.write(f"{text}\n")
        if not report.is_ok:
            sys.exit(BROKEN)


def _span(settle: float | None) -> timedelta | None:
    """Return the time to settle. Raises CommandError if it is invalid."""
    if settle is None:
        return None
    if not 0 <= settle <= LONGEST:
        message = f"--settle: {settle:g} must be from 0 to {LONGEST:g} seconds"
        raise CommandError(message, returncode=UNKNOWN)
    return timedelta(seconds=settle)


def _render(report: Report, paint: Paint, *, repairs: bool) -> Iterator[str]:
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
        yield paint(line, **_BAD if found.count else _MILD if found.repaired else {})
    for found in report.found:
        if found.count:
            yield from _example_lines(found, partial(paint, **_BAD))
    for note in report.notes:
        if note.count:
            yield from _example_lines(note, partial(paint, **_MILD))
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
        yield paint(f"Repaired: {report.repaired:,} (expected: 0)", **_MILD if report.repaired else _GOOD)
    count = sum(found.count for found in report.found)
    at = f"{report.checked_at:%Y-%m-%d %H:%M:%S %Z}"
    if report.is_ok:
        yield paint(f"✓ Every invariant that rows can show holds, {at}", **_GOOD)
    else:
        yield paint(f"✗ {count:,} finding{'' if count == 1 else 's'}, {at}", **_BAD)
