"""Groups in the event log."""

from datetime import timedelta
from typing import Any

from dispatcher.api import any_of
from dispatcher.audit import audit
from dispatcher.ojs.models import EventLogEntry
from tests.builders import (
    committed,
    go,
    key,
    waiting,
)

pytestmark = committed

EGRESS = any_of("egress:*")


# What a call gets


def found() -> list[str]:
    return [each.check.name for each in audit(settle=timedelta(0)).found if each.count]


def test_the_events_name_the_group(settings: Any) -> None:
    settings.DISPATCHER = {"event_retention": 3600}
    key("egress:1", concurrency=1)
    go(waiting(EGRESS), waiting(EGRESS))
    entry = EventLogEntry.objects.get(kind="rate_limit.exceeded")
    assert (entry.data["key"], entry.data["strategy"]) == ("egress:*", "concurrency")
