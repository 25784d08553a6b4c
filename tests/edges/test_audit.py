"""The audit: each breach is found by its name, repaired where that is promised, and nothing else is."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.audit import audit, repairs
from dispatcher.audit.invariants import CHECKS
from dispatcher.engine.ticks import sweep
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, Lane, LaneSite, LeaseCheck, Note, Process, Queue, RateLimitKey, Slot, Start
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, committed, erase, seen, states, waiting
from tests.deliveries.direct import begin_process
from tests.edges.auditing import HOUR, found, limited_long_ago, miscounted, names, over_limit_concurrency, send, start

pytestmark = [committed, pytest.mark.django]

QUICK = {"run_lease": 1, "recover_every": 0.1, "heartbeat": 0.2}
"""Leases that run out soon: those of an hour ago were to be recovered in the life of this server."""


# A breach of every kind


def over_limit_per_worker() -> None:
    key = RateLimitKey.objects.declare("api", concurrency=4)
    start(*send("api", count=2))
    Slot.objects.filter(key=key).update(worker_id=uuid4())
    limited_long_ago(per_worker=1)


def over_limit_rate() -> None:
    key = RateLimitKey.objects.declare("api", rate=(2, 60))
    send("api", count=2)
    before = timezone.now() - timedelta(seconds=10)
    Start.objects.create(key_id=key.id, at=before, total=1, cost=1, last_cost=1)
    limited_long_ago()


def over_limit_throttle() -> None:
    RateLimitKey.objects.declare("api")
    start(*send("api", count=2))
    limited_long_ago(throttle_limit=1, throttle_period=timedelta(seconds=10))


def two_tickets() -> None:
    send(count=2)
    CallQueue.objects.update(ticket=uuid4())


def lease_unrecovered() -> None:
    start(*send())
    Slot.objects.update(lease_until=timezone.now() - HOUR)


def slot_without_call() -> None:
    RateLimitKey.objects.declare("api")
    ended, gone = send("api", count=2)
    CallQueue.objects.filter(id=ended.id).update(state=State.COMPLETED, ticket=None, finished_at=timezone.now())
    erase(gone)


def call_without_slot() -> None:
    _, running = send(count=2)
    start(running)
    Slot.objects.all().delete()


def wrong_slots() -> None:
    RateLimitKey.objects.declare("api")
    send("api")
    Slot.objects.update(cost=5)


def wrong_fields() -> None:
    (call,) = send(scheduled_at=timezone.now() + HOUR)
    CallQueue.objects.filter(id=call.id).update(scheduled_at=None)


def unserved_asleep() -> None:
    waiting()
    Note.objects.all().delete()


def unserved_parked() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    held, _ = send("api", count=2)
    Slot.objects.filter(call=held).delete()
    erase(held)


def unserved_ready() -> None:
    waiting()
    Note.objects.all().delete()
    LaneSite.objects.update(place=0)


def unserved_unplaced() -> None:
    with transaction.atomic():
        CallQueue.objects.send("noop", rate_limit={"key": "new", "concurrency": 1})
        connection.run_on_commit.clear()
    CallQueue.objects.update(created_at=timezone.now() - HOUR)


def unserved_due() -> None:
    send(scheduled_at=timezone.now() + HOUR)
    CallQueue.objects.update(scheduled_at=timezone.now() - HOUR)


def oversized() -> None:
    """Of a kind that can be repaired: somebody has raised the limit by hand."""
    RateLimitKey.objects.declare("api", concurrency=8)
    api.override("api", until=timezone.now() + HOUR, concurrency=5)
    CallQueue.objects.send_many([Call(task="noop", keys={"api": 8})])
    RateLimitKey.objects.update(override_concurrency=8)


BREACHES: list[Callable[[], None]] = [
    *(over_limit_concurrency, over_limit_per_worker, miscounted, over_limit_rate, over_limit_throttle),
    *(two_tickets, wrong_fields, lease_unrecovered, slot_without_call, call_without_slot, wrong_slots),
    *(unserved_asleep, unserved_parked, unserved_ready, unserved_unplaced, unserved_due, oversized),
]
LATER = {"order"}
"""Seen only while it happens; it has tests of its own."""
SETTINGS: dict[str, dict[str, Any]] = {"lease_unrecovered": QUICK}
REPAIRED = {check.name for check in CHECKS if check.repair}


def check_of(name: str) -> str:
    """Return the check that finds a breach: some find several, and report which."""
    return next((check for check in ("unserved", "over_limit") if name.startswith(check)), name)


breach = pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)


@pytest.fixture
def broken(breach: Callable[[], None], settings: Any) -> str:
    settings.DISPATCHER = SETTINGS.get(breach.__name__, {})
    assert found() == []
    breach()
    return breach.__name__


def test_every_check_has_its_breach_here() -> None:
    assert {check_of(breach.__name__) for breach in BREACHES} | LATER == {check.name for check in CHECKS}


@breach
def test_a_breach_is_found_by_its_name_and_repaired_where_that_is_promised(
    breach: Callable[[], None], broken: str
) -> None:
    assert found() == [broken]
    report = audit(settle=timedelta(0), repair=True)
    repaired = {found.check.name: found.repaired for found in report.found if found.repaired}
    assert repaired.keys() == REPAIRED & {check_of(broken)}
    assert report.is_ok == (check_of(broken) in REPAIRED)
    assert audit(settle=timedelta(0), repair=True).repaired == 0


# What a repair leaves


def test_a_repair_frees_slots_and_lets_the_next_call_in() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    held, next_call = send("api", count=2)
    erase(held)
    report = audit(settle=timedelta(0), repair=True)
    assert (report.repaired, report.is_ok) == (1, True)
    assert states([next_call]) == [State.DISPATCHED]


def test_a_repair_puts_back_what_no_limit_counts_and_spends_attempts_only_of_what_had_started() -> None:
    fresh, running = send(count=2)
    start(running)
    Slot.objects.all().delete()
    assert audit(settle=timedelta(0), repair=True).repaired == 2
    assert states([fresh, running]) == [State.DISPATCHED, State.RETRYABLE]
    assert [seen(call).attempt for call in (fresh, running)] == [0, 1]
    assert Slot.objects.filter(call=fresh).exists()


def test_a_repair_does_not_touch_a_call_that_has_a_new_ticket() -> None:
    (call,) = send()
    Slot.objects.all().delete()
    found = next(each for each in audit().found if each.check.name == "call_without_slot")
    CallQueue.objects.update(ticket=uuid4())
    assert repairs.put_back(found.findings) == 0
    assert states([call]) == [State.DISPATCHED]


# What is no breach


def test_lowering_a_limit_is_no_breach() -> None:
    RateLimitKey.objects.declare("api", concurrency=3, rate=(3, 60))
    start(*send("api", count=3))
    limited_long_ago()
    api.limit("api", {"concurrency": 1, "rate": (1, 60), "throttle": (1, 60)})
    assert found() == []


def test_an_override_counts_while_it_lasts_and_its_end_is_no_breach() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    send("api")
    api.override("api", until=timezone.now() + HOUR, concurrency=3)
    send("api", count=2)
    limited_long_ago()
    assert found() == []
    for ended_at, breaches in ((timezone.now(), []), (timezone.now() - HOUR, ["over_limit_concurrency"])):
        RateLimitKey.objects.update(override_until=ended_at)
        assert found() == breaches


def test_calls_dispatched_before_their_queue_had_a_key_are_in_order() -> None:
    send()
    RateLimitKey.objects.declare("queue:celery", concurrency=1)
    assert found() == []
    CallQueue.objects.update(dispatched_at=timezone.now() + HOUR)
    assert found() == ["wrong_slots"]


def test_slots_of_costly_calls_with_several_keys_and_a_key_of_their_queue_are_in_order() -> None:
    for name in ("tokens", "requests", "queue:celery"):
        RateLimitKey.objects.declare(name, concurrency=10)
    CallQueue.objects.send("noop", keys={"tokens": 7, "requests": 1})
    RateLimitKey.objects.update(created_at=timezone.now() - HOUR)
    assert found() == []
    Slot.objects.filter(key__name="queue:celery").delete()
    assert found() == ["wrong_slots"]


def test_a_lane_is_parked_by_right_while_its_first_call_is_too_dear_or_its_time_is_noted() -> None:
    RateLimitKey.objects.declare("dear", concurrency=3)
    RateLimitKey.objects.declare("api", rate=(1, 60))
    for _ in range(2):
        CallQueue.objects.send("noop", keys={"dear": 2})
    send("api", count=2)
    assert found() == []
    RateLimitKey.objects.filter(name="api").update(rate_limit=2)
    assert found() == ["unserved_parked"], "the note is for a later time"
    Note.objects.update(at=timezone.now())
    assert found() == []
    Note.objects.all().delete()
    assert found() == ["unserved_parked"]
    Note.objects.create(at=timezone.now() - HOUR, key_id=RateLimitKey.objects.get(name="api").id, is_forced=False)
    assert found() == ["unserved_parked"], "nothing reads the notes"


def test_a_ready_lane_hides_no_key_with_room() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    held, _, _ = [*send("api", count=2), *send("api", priority=1)]
    Slot.objects.filter(call=held).delete()
    erase(held)
    LaneSite.objects.filter(priority=1).update(place=0)
    Queue.objects.update_or_create(name="celery", defaults={"delivery": "direct"})
    assert found() == ["unserved_parked"]


def test_a_ready_lane_of_a_worker_that_is_busy_claims_what_its_first_call_costs() -> None:
    Queue.objects.update_or_create(name="celery", defaults={"delivery": "direct"})
    api_key = RateLimitKey.objects.declare("api", concurrency=3)
    CallQueue.objects.send_many([Call(task="noop", keys={"api": 2}), Call(task="noop", keys={"api": 2}, priority=1)])
    LaneSite.objects.filter(priority=1).update(place=0)
    LaneSite.objects.filter(priority=0).update(place=api_key.id)
    Note.objects.all().delete()
    assert found() == ["unserved_parked"], "no worker comes for the ready lane"
    heartbeat.record(HERE, [])
    assert found() == []
    assert sweep() == 0
    RateLimitKey.objects.update(concurrency=4)
    assert found() == ["unserved_parked"], "there is room for both"
    RateLimitKey.objects.update(concurrency=3)
    LaneSite.objects.filter(place=0).update(priority=-1)
    assert found() == ["unserved_parked"], "the other one comes first"
    assert sweep() == 1


def test_a_lane_is_parked_by_right_while_room_is_kept_and_a_moment_longer() -> None:
    unserved_parked()
    LaneSite.objects.update(kept_until=timezone.now() + HOUR)
    assert found() == []
    assert sweep() == 0
    LaneSite.objects.update(kept_until=timezone.now())
    assert found() == []
    assert sweep() == 0
    LaneSite.objects.update(kept_until=timezone.now() - HOUR)
    assert found() == ["unserved_parked"]
    assert sweep() == 1


def test_room_kept_in_vain_is_left_to_workers_that_are_not_there_but_by_other_queues() -> None:
    unserved_parked()
    Queue.objects.update_or_create(name="celery", defaults={"delivery": "direct"})
    LaneSite.objects.update(kept_until=timezone.now() - HOUR)
    assert found() == []
    assert sweep() == 0
    api = RateLimitKey.objects.get(name="api")
    Lane.objects.create(queue="other", priority=0, on_limit="wait", key_ids=[api.id])
    LaneSite.objects.filter(queue="other").update(place=api.id)
    assert found() == ["unserved_parked"], "a lane of another queue"
    assert sweep() == 1


def test_a_ready_lane_of_a_direct_queue_is_not_served_where_a_worker_is_idle() -> None:
    Queue.objects.update_or_create(name="celery", defaults={"delivery": "direct"})
    heartbeat.record(HERE, [])
    unserved_ready()
    taker = Taker(worker=HERE.id, process=uuid4(), queues=["celery"])
    begin_process(taker)
    assert found() == []
    Process.objects.update(idle_at=Now())
    assert found() == ["unserved_ready"]
    assert found(repair=True) == [], "the worker is woken, and is no longer idle"


def test_leases_are_not_judged_where_the_recovery_has_only_just_come_back(settings: Any) -> None:
    settings.DISPATCHER = QUICK
    lease_unrecovered()
    LeaseCheck.objects.create(id=1, checked_at=timezone.now(), since=timezone.now())
    assert found() == []
    LeaseCheck.objects.update(since=timezone.now() - HOUR)
    assert found() == ["lease_unrecovered"]


def test_what_passes_while_it_looks_is_no_breach_and_what_stays_is_looked_at_for_two_ticks(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 3}
    unserved_asleep()
    waits = list[float]()
    assert names(audit(pause=waits.append)) == ["unserved_asleep"]
    assert sum(waits) == 6
    waits.clear()

    def serve(seconds: float) -> None:
        waits.append(seconds)
        LaneSite.objects.update(place=0)
        engine.dispense()

    assert names(audit(settle=timedelta(seconds=2), pause=serve)) == []
    assert waits == [0.5]


# Order


def test_a_call_that_another_passes_before_our_eyes_is_found_and_one_put_back_is_no_breach() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    held, first, second = send("api", count=3)
    CallQueue.objects.filter(id=held.id).update(position=held.position + 1_000_000)
    RateLimitKey.objects.update(concurrency=2, is_paused=True)
    assert found() == []

    def admit_second(*, is_first_put_back: bool) -> None:
        changed = {"state": State.DISPATCHED, "ticket": uuid4(), "dispatched_at": timezone.now()}
        if CallQueue.objects.filter(id=second.id, state=State.AVAILABLE).update(**changed):
            key = RateLimitKey.objects.get(name="api")
            Slot.objects.create(call=second, key=key, cost=1, lease_until=timezone.now() + HOUR)
        if is_first_put_back:
            CallQueue.objects.filter(id=first.id).update(published_at=None)

    with transaction.atomic():
        assert found(pause=lambda _: admit_second(is_first_put_back=True)) == []
        transaction.set_rollback(True)
    report = audit(settle=timedelta(0), pause=lambda _: admit_second(is_first_put_back=False))
    (order,) = (found for found in report.found if found.count)
    assert (order.check.name, order.findings[0].target) == ("order", str(first.id))
