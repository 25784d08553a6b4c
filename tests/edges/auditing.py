"""What the tests of the audit begin with, and how they look."""

import io
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.utils import timezone

from dispatcher.audit import Report, audit
from dispatcher.lifecycle import claim
from dispatcher.models import CallQueue, RateLimitKey, Start
from dispatcher.request import Call
from tests.builders import seen, ticket_of

HOUR = timedelta(hours=1)


def send(*keys: str, count: int = 1, **fields: Any) -> list[CallQueue]:
    """Send calls, and return them as the trips after the commit left them."""
    sent = CallQueue.objects.send_many([Call(task="noop", keys=keys, **fields)] * count)
    return [seen(call) for call in sent]


def start(*calls: CallQueue) -> None:
    """Claim calls, as workers do."""
    for call in calls:
        assert isinstance(claim.claim(call.id, ticket_of(call)), claim.Claimed)


def limited_long_ago(**limits: Any) -> None:
    """Write limits into the keys, as if they had been in force for an hour."""
    RateLimitKey.objects.update(limited_at=timezone.now() - HOUR, **limits)


def names(report: Report) -> list[str]:
    """Return the checks that found something; of what is not served, also why."""
    found = [(each.check.name, each.findings) for each in report.found if each.count]
    return [
        f"{name}_{why}" if why else name
        for name, findings in found
        for why in sorted({str(finding.facts.get("why", "")) for finding in findings})
    ]


def found(**options: Any) -> list[str]:
    """Look once, without waiting for what may only be passing, and return the checks that found something."""
    return names(audit(settle=timedelta(0), **options))


def noted() -> dict[str, int]:
    """Return the notes, and how much each is about."""
    return {note.check.name: note.count for note in audit(settle=timedelta(0)).notes if note.count}


def printed(*args: str) -> tuple[str, int]:
    """Run the command, and return what it printed and its exit code."""
    out = io.StringIO()
    try:
        call_command("dispatcher_audit", "--settle", "0", *args, stdout=out)
    except SystemExit as ended:
        return out.getvalue(), int(str(ended.code))
    return out.getvalue(), 0


def miscounted() -> None:
    key = RateLimitKey.objects.declare("api", rate=(5, 60))
    start(*send("api", count=2))
    Start.objects.create(key_id=key.id, at=timezone.now(), total=2, cost=1, last_cost=1)


def over_limit_concurrency() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    send("api", count=2)
    limited_long_ago(concurrency=1)
