"""After `pause` has returned, nothing starts whose claim began later; what was admitted goes back unspent."""

import itertools
import time
from datetime import datetime, timedelta
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.lifecycle import control, finish, send
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import STOP_PASSES, actors, at_once, concurrent, holding
from tests.races.traffic import in_flight, write

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


def test_a_claim_that_waited_for_the_pause_notices_it() -> None:
    RateLimitKey.objects.declare("api", **THROTTLE)
    (call,) = in_flight("api")
    with actors(2) as (admin, worker):
        admin.open()
        admin.do(control.pause, "api")
        running = worker.begin(engine.execute, call.id, call.ticket, pytest.fail)
        worker.wait_blocked(by=admin)
        admin.commit()
        assert running.result() is Refused.KEY_CLOSED
    now = CallQueue.objects.get(id=call.id)
    assert (now.state, now.attempt, now.ticket, now.position) == (State.AVAILABLE, 0, None, call.position)
    assert not Slot.objects.exists()
    assert Lane.objects.get(id=now.lane_id).parked_on.name == "api"
    audit(has_ended=False)
    api.resume("api")
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED


def test_a_claim_that_waited_for_a_pause_that_was_rolled_back_starts() -> None:
    RateLimitKey.objects.declare("api", **THROTTLE)
    (call,) = in_flight("api")
    with actors(2) as (admin, worker):
        admin.open()
        admin.do(control.pause, "api")
        claiming = worker.begin(claim, call.id, call.ticket)
        worker.wait_blocked(by=admin)
        admin.roll_back()
        assert isinstance(claiming.result(), Claimed)
    audit(has_ended=False)


def test_a_claim_that_waited_for_a_block_notices_it() -> None:
    RateLimitKey.objects.declare("api", **THROTTLE)
    (call,) = in_flight("api")
    with actors(2) as (provider, worker):
        provider.open()
        provider.do(control.block, timedelta(minutes=1), names=["api"])
        claiming = worker.begin(claim, call.id, call.ticket)
        worker.wait_blocked(by=provider)
        provider.commit()
        assert claiming.result() is Refused.KEY_CLOSED
    audit(has_ended=False)


def test_claims_of_one_throttle_that_waited_for_each_other_are_spaced() -> None:
    RateLimitKey.objects.declare("api", throttle=(20, 1))
    first, second, third = in_flight("api", count=3)
    with actors(3) as workers:
        workers[0].open()
        workers[0].do(claim, first.id, first.ticket)
        claims = [
            worker.begin(claim, call.id, call.ticket) for worker, call in zip(workers[1:], (second, third), strict=True)
        ]
        workers[1].wait_blocked(by=workers[0])
        workers[0].commit()
        assert all(isinstance(claimed.result(), Claimed) for claimed in claims)
    starts = sorted(CallQueue.objects.values_list("started_at", flat=True))
    # A busy machine may miss a start, and takes the next one that is free.
    assert all(later - earlier >= timedelta(seconds=0.05) for earlier, later in itertools.pairwise(starts))
    audit(has_ended=False)


def test_a_pause_waits_for_the_pass_that_has_seen_the_key_open() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    waiting = CallQueue.objects.send("noop", keys=["api"])
    claim(running.id, running.ticket)
    with actors(2) as (dispenser, admin):
        finish.complete(running.id, running.ticket, result=None)
        with holding(STOP_PASSES) as gate:
            passing = dispenser.begin(engine.dispense, lanes=[waiting.lane_id])
            dispenser.wait_blocked(by=gate)
            pausing = admin.begin(api.pause, "api")
            admin.wait_blocked(by=dispenser)
        assert passing.result() == 1
        pausing.result()
    admitted = CallQueue.objects.get(id=waiting.id)
    assert admitted.state == State.DISPATCHED
    assert claim(admitted.id, admitted.ticket) is Refused.KEY_CLOSED
    audit(has_ended=False)


def test_a_resume_wakes_the_lane_that_a_pass_is_just_parking() -> None:
    RateLimitKey.objects.declare("api")
    api.pause("api")
    (call,) = write([["api"]])
    with actors(2) as (dispenser, admin), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[call.lane_id])
        dispenser.wait_blocked(by=gate)
        resuming = admin.begin(api.resume, "api")
        admin.wait_blocked(by=dispenser)
        gate.rollback()
        assert passing.result() == 0
        resuming.result()
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
    audit(has_ended=False)


@pytest.mark.parametrize("verb", ["limit", "override", "end_override"])
def test_a_raised_limit_wakes_the_lane_that_a_pass_is_just_parking(verb: str) -> None:
    RateLimitKey.objects.declare("api", concurrency=0 if verb != "end_override" else 1)
    until = timezone.now() + timedelta(hours=1)
    raised = {
        "limit": partial(api.limit, "api", {"concurrency": 1}),
        "override": partial(api.override, "api", until=until, concurrency=1),
        "end_override": partial(api.end_override, "api"),
    }
    if verb == "end_override":
        api.override("api", until=until, concurrency=0)
    (call,) = write([["api"]])
    with actors(2) as (dispenser, admin), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[call.lane_id])
        dispenser.wait_blocked(by=gate)
        raising = admin.begin(raised[verb])
        admin.wait_blocked(by=dispenser)
        gate.rollback()
        assert passing.result() == 0
        raising.result()
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
    audit(has_ended=False, limits_changed=True)


def test_a_limit_that_is_raised_while_a_pass_sets_a_call_aside_lets_it_go() -> None:
    RateLimitKey.objects.declare("api", concurrency=10)
    (call,) = send.write([send.draft(Call(keys={"api": 8}), task="noop", queue="celery")])
    RateLimitKey.objects.update(concurrency=5)
    with actors(2) as (dispenser, admin), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[call.lane_id])
        dispenser.wait_blocked(by=gate)
        raising = admin.begin(api.limit, "api", {"concurrency": 10})
        admin.wait_blocked(by=dispenser)
        gate.rollback()
        assert passing.result() == 0
        assert raising.result() == 0
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
    audit(has_ended=False, limits_changed=True)


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
