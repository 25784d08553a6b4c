"""With every clock an hour off, and each by another hour, nothing is different: PostgreSQL's is the only one.

The tests themselves have the database's clock, as far as they look at one.
"""

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from email.utils import formatdate
from typing import Any

import pytest
from django.utils import timezone

from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.apps import APPS
from tests.flows import sample_tasks
from tests.flows.clocks.faketime import HOUR
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import audit, most_at_once, most_in_any_window, spent_by_key, too_close
from tests.races.lockstep import eventually
from tests.serving import Reply, Request, serving

pytestmark = [
    pytest.mark.clocks,
    pytest.mark.django_db(transaction=True, available_apps=[*APPS, "django_celery_beat"]),
]

SECOND = timedelta(seconds=1)
PATIENCE = 60.0
SOON = 20 * SECOND
"""How late a busy machine may be; an hour is more."""

Cast = Callable[..., Processes]


def send(task: object, *args: object, **options: Any) -> CallQueue:
    return CallQueue.objects.send(task, args=args, **{"queue": QUEUE, **options})


def send_many(count: int, key: str, task: object, argument: object, *, queue: str = QUEUE) -> list[CallQueue]:
    return CallQueue.objects.send_many([Call(task=task, args=[argument], keys=[key], queue=queue)] * count)


def ended(*calls: CallQueue) -> None:
    """Wait until all calls have ended, and see how these did."""
    eventually(lambda: not CallQueue.objects.exclude(state__in=TERMINAL).exists(), within=PATIENCE, poll=0.1)
    for call in calls:
        call.refresh_from_db()


ASKED_AT: dict[str, list[float]] = {}
"""When a third party was asked, by path."""


def refuse_first(asked: Request) -> Reply:
    """Say 429 to the first request for a path, and until when by our own clock, which is right."""
    asked_at = ASKED_AT.setdefault(asked.path, [])
    asked_at.append(time.monotonic())
    return 429 if len(asked_at) == 1 else 200, {"Retry-After": formatdate(time.time() + 3, usegmt=True)}, b""


@pytest.fixture
def address() -> Iterator[str]:
    ASKED_AT.clear()
    with serving(refuse_first) as address:
        yield address


class Own:
    """What one of the workers alone is given: what waits by the word of its task."""

    def __init__(self, name: str, address: str) -> None:
        queue = f"{QUEUE}-{name}"
        self.path = f"/{name}"
        self.long = send(sample_tasks.nap, 2.5, queue=queue)
        self.failing = send(sample_tasks.fail, 1, queue=queue, retry={"initial_interval": 2, "jitter": False})
        self.asking = send(sample_tasks.fail_and_name_a_time, 1, queue=queue)
        reply = {"method": "get", "params": {"url": address + self.path}}
        self.reply = CallQueue.objects.send(call_data=reply, queue=queue)

    @property
    def calls(self) -> list[CallQueue]:
        return [self.long, self.failing, self.asking, self.reply]

    def check(self) -> None:
        """See that each waited as long as it should have."""
        assert [call.attempt for call in self.calls] == [1, 2, 2, 1]
        assert 2 * SECOND <= self.failing.started_at - failed_at(self.failing) < 2 * SECOND + SOON
        assert SECOND / 4 < self.asking.started_at - failed_at(self.asking) < SECOND / 2 + SOON
        first, second = ASKED_AT[self.path]
        # A date has whole seconds.
        assert 2 * SECOND <= timedelta(seconds=second - first) < 3 * SECOND + SOON


def failed_at(call: CallQueue) -> datetime:
    """Return when the first attempt failed, by the database's clock."""
    return datetime.fromisoformat(call.errors[0]["occurred_at"])


@pytest.mark.parametrize(
    ("dispenser", "beat"), [(HOUR, -HOUR), (-HOUR, HOUR)], ids=["dispenser ahead", "dispenser behind"]
)
def test_an_hour_off_changes_nothing(cast: Cast, address: str, dispenser: timedelta, beat: timedelta) -> None:
    few = RateLimitKey.objects.declare("few", concurrency=2)
    some = RateLimitKey.objects.declare("some", rate=(10, 1))
    even = RateLimitKey.objects.declare("even", throttle=(20, 1))
    direct = RateLimitKey.objects.declare("direct", throttle=(20, 1))
    RateLimitKey.objects.declare("never", concurrency=0)
    processes = cast(dispenser=dispenser, beat=beat)

    own = [Own(name, address) for name in ("ahead", "behind")]
    send_many(20, "few", sample_tasks.nap, 0.05)
    send_many(25, "some", sample_tasks.echo, "some")
    send_many(30, "even", sample_tasks.echo, "even")
    taken = send_many(30, "direct", sample_tasks.echo, "direct", queue=f"{QUEUE}-direct")
    now = timezone.now()
    scheduled = send(sample_tasks.echo, "later", scheduled_at=now + 3 * SECOND)
    expiring = send(sample_tasks.echo, "late", keys=["never"], expires_at=now + 2 * SECOND)
    send(sample_tasks.echo, "in time", expires_at=now + 30 * SECOND)
    ended(scheduled, expiring, *(call for each in own for call in each.calls))

    # What waited for a time waited for that time by the database's clock.
    for each in own:
        each.check()
    assert timedelta(0) <= scheduled.started_at - scheduled.scheduled_at < SOON
    assert timedelta(0) <= expiring.finished_at - expiring.expires_at < SOON
    # Steps of direct workers start throttled calls as soon as they may: no process misses its time.
    at = sorted(CallQueue.objects.filter(id__in=[call.id for call in taken]).values_list("started_at", flat=True))
    assert at[-1] - at[0] < 29 * SECOND / 20 + SOON
    # No attempt was spent but on what failed, no lease was broken, nothing ran twice.
    calls = list(CallQueue.objects.all())
    failed = {call.id for each in own for call in (each.failing, each.asking)}
    assert {call.id for call in calls if call.state != State.COMPLETED} == {expiring.id}
    assert {call.id for call in calls if call.attempt > 1} == {call.id for call in calls if call.errors} == failed
    reply = {each.reply.id for each in own}
    assert {call.id for call in calls if call.id not in reply and processes.noted(call.id) != call.attempt} == set()
    # The limits held, as the database's own stamps say.
    spent = spent_by_key()
    assert most_at_once(spent[few.id]) == 2
    assert 5 < most_in_any_window(spent[some.id], SECOND) <= 10
    assert too_close(spent[even.id], SECOND / 20) == too_close(spent[direct.id], SECOND / 20) == []
    audit()
