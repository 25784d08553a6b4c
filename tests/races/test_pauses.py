"""After `pause` has returned, nothing starts whose claim began later; what was admitted goes back unspent."""

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from dispatcher import api, engine
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import at_once, concurrent
from tests.races.traffic import in_flight

if TYPE_CHECKING:
    from datetime import datetime

pytestmark = concurrent

THROTTLE = {"throttle": (1_000, 1)}
PLAIN = {"concurrency": 100}


@pytest.mark.parametrize("limits", [PLAIN, THROTTLE], ids=["plain", "throttled"])
def test_no_claim_that_began_after_the_pause_returned_starts(limits: dict[str, object]) -> None:
    for number in range(5):
        name = f"api:{number}"
        RateLimitKey.objects.declare(name, **limits)
        calls = in_flight(name, count=45)

        def pause(name: str = name) -> float:
            api.pause(name)
            return time.monotonic()

        def claim_three(batch: list[CallQueue]) -> list[tuple[float, Claimed | Refused]]:
            return [(time.monotonic(), claim(call.id, call.ticket)) for call in batch]

        batches = [calls[first : first + 3] for first in range(0, 45, 3)]
        paused_at, *claims = at_once(pause, *[partial(claim_three, batch) for batch in batches])
        outcomes = [outcome for batch in claims for outcome in batch]
        assert all(began_at < paused_at for began_at, outcome in outcomes if isinstance(outcome, Claimed))
        assert {outcome for _, outcome in outcomes if isinstance(outcome, Refused)} <= {Refused.KEY_CLOSED}
        assert (
            sum(isinstance(outcome, Claimed) for _, outcome in outcomes)
            == CallQueue.objects.filter(state=State.ACTIVE, id__in=[call.id for call in calls]).count()
        )
    audit(has_ended=False)


def test_pauses_resumes_claims_and_passes_at_once_leave_nothing_behind() -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 60)

    def blink() -> None:
        for _ in range(15):
            api.pause("api")
            api.resume("api")

    def work() -> None:
        for _ in range(15):
            for call in CallQueue.objects.filter(state=State.DISPATCHED)[:5]:
                engine.execute(call.id, call.ticket, _clock)

    at_once(blink, *[work] * 7)
    while dispatched := list(CallQueue.objects.filter(state=State.DISPATCHED)):
        for call in dispatched:
            engine.execute(call.id, call.ticket, _clock)
    assert set(CallQueue.objects.values_list("attempt", flat=True)) == {1}
    audit()


def _clock() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now.isoformat()
