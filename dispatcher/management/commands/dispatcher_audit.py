"""manage.py dispatcher_audit: check every invariant in the live database; exits 0 if all hold, 1 if not."""

import json
import sys
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from dispatcher.audit import Report, audit
from dispatcher.management import audit_table
from dispatcher.management.command import console, explained
from dispatcher.sql import faults

LONGEST: Final = 600.0
BROKEN: Final = 1
UNKNOWN: Final = 2


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
        report = _audit(repair=repair, settle=_span(settle))
        with console(self.stdout, no_color=no_color) as screen:
            lines = audit_table.render(report, screen.paint, repairs=repair)
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


def _audit(*, repair: bool, settle: timedelta | None) -> Report:
    try:
        return audit(repair=repair, settle=settle)
    except (DatabaseError, InterfaceError) as fault:
        message = faults.in_words(fault) or f"The database query failed: {fault}"
        raise CommandError(message, returncode=UNKNOWN) from fault
