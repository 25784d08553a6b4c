"""A transaction that keeps a key's row locked stops the calls of that key, and no others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import api, ending, engine, sql
from dispatcher import audit as auditing
from dispatcher.ending import InFlight
from dispatcher.engine import ends
from dispatcher.engine.ends import stop as stop_keys
from dispatcher.errors import RateLimited, WorkerLost
from dispatcher.lifecycle import control, heartbeat
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.lifecycle.finish import Requeue
from dispatcher.lifecycle.run import Stopped
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import Block, CallQueue, KeyChange, RateLimitKey, Slot, Worker
from dispatcher.request import Call
from dispatcher.states import State
from tests import db_admin
from tests.builders import HERE, held, ticket_of
from tests.races.audit import audit
from tests.races.lockstep import actors, assert_thaws, at_once, concurrent, eventually, holding
from tests.races.traffic import declare_tenants, ended, in_flight, state_of, tick_and_work, write

pytestmark = [concurrent, pytest.mark.server]

END = datetime(2999, 1, 1, tzinfo=UTC)
PROMPTLY = 10.0
"""Long for a machine that is busy, and short for a statement that waits for an open transaction (s)."""


@contextmanager
def locked(name: str) -> Iterator[psycopg.Connection[Any]]:
    """Keep a key locked, as a view does that has changed it in a transaction that goes on."""
    change = "UPDATE dispatcher_ratelimitkey SET is_paused = is_paused WHERE name = %s"
    with holding(change, [name]) as held:
        yield held


@contextmanager
def promptly() -> Iterator[Callable[..., Any]]:
    """Give what does work on a connection of its own, and fails if it does not come back."""
    with actors(1) as (actor,):

        def do(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return actor.begin(work, *args, **kwargs).result(PROMPTLY)

        yield do


def is_clean() -> bool:
    return auditing.audit(settle=timedelta(seconds=0.2)).is_ok


def test_the_holder_of_a_key_s_lock_can_cancel_a_call_that_is_being_claimed() -> None:
    RateLimitKey.objects.declare("locked", throttle=(100, 1))
    (call,) = in_flight("locked")
    with actors(2) as (person, worker):
        person.open()
        person.do(api.pause, "locked")
        claiming = worker.begin(engine.execute, call.id, call.ticket, lambda: "ran")
        worker.wait_blocked(by=person)
        assert person.do(api.cancel, [call.id]) == [call.id]
        person.commit()
        assert claiming.result() in {Refused.BUSY, Refused.STALE}
    assert state_of(call) == State.CANCELLED
    assert is_clean()


def stop() -> None:
    """Do what a task does whose provider says stop."""
    raise RateLimited(60)


def blocked_until(name: str) -> datetime | None:
    return RateLimitKey.objects.get(name=name).blocked_until


def blocked_by_a_tick(name: str) -> datetime | None:
    engine.tick(now=timezone.now())
    return blocked_until(name)


@pytest.mark.parametrize("key", [None, "locked"])
def test_no_process_of_a_pool_waits_for_a_locked_key_when_its_provider_says_stop(
    key: str | None,
) -> None:
    for name in ("locked", "other"):
        RateLimitKey.objects.declare(name, concurrency=5)
    running, apart = in_flight("locked", "other"), in_flight("other")
    said_at = timezone.now()

    def stop() -> None:
        raise RateLimited(60, key=key)

    with locked("locked"), promptly() as do:
        outcome = do(engine.execute, running[0].id, running[0].ticket, stop)
        assert isinstance(outcome, Stopped)
        call = CallQueue.objects.get(id=running[0].id)
        assert (call.state, call.attempt) == (State.AVAILABLE, 0)
        assert not Slot.objects.filter(call=call).exists()
        if key is None:
            assert blocked_until("other"), "it is not locked"
        assert blocked_until("locked") is None
        overdue_at = timezone.now()
    until = eventually(partial(blocked_by_a_tick, "locked"))
    assert said_at < until - timedelta(seconds=60) < overdue_at
    assert key is None or blocked_until("other") is None
    assert (state_of(call), state_of(apart[0])) == (State.AVAILABLE, State.DISPATCHED)
    assert not Block.objects.exists()


def test_who_records_the_loss_of_a_process_has_no_key_locked_after_its_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    assert isinstance(claim(call.id, ticket_of(call)), Claimed)
    are_within: list[bool] = []

    def trip(*args: Any, **kwargs: Any) -> Any:
        are_within.append(sql.in_transaction())
        return take(*args, **kwargs)

    monkeypatch.setattr("dispatcher.lifecycle.take.take", trip)
    assert engine.lose([held(call)], WorkerLost("killed"), is_crash=True) == 1
    assert are_within, "it made trips"
    assert not any(are_within), "a busy process would keep the key from others until its commit"


def test_a_call_does_not_start_under_a_block_that_a_locked_key_has_not_got_yet() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    (call,) = in_flight("locked")
    with locked("locked"), promptly() as do:
        do(api.block, "locked", 60)
    assert blocked_until("locked") is None
    assert engine.execute(call.id, call.ticket, lambda: "ran") is Refused.KEY_CLOSED


def test_a_resume_ends_a_block_that_a_locked_key_has_not_got_yet() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    with locked("locked"), promptly() as do:
        do(api.block, "locked", 60)
    api.resume("locked")
    engine.tick(now=timezone.now())
    assert blocked_until("locked") is None


def test_the_holder_of_a_key_s_lock_can_cancel_a_call_whose_provider_says_stop() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    (call,) = in_flight("locked")
    with actors(2) as (person, worker):
        person.open()
        person.do(api.pause, "locked")
        stopping = worker.begin(engine.execute, call.id, call.ticket, stop)
        assert isinstance(stopping.result(PROMPTLY), Stopped)
        assert person.do(api.cancel, [call.id]) == [call.id]
        person.commit()
    assert eventually(partial(blocked_by_a_tick, "locked"))


def test_a_report_that_blocks_a_locked_key_is_in_its_history() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    (call,) = in_flight("locked")
    stopped = replace(ended(call), ending=ending.stopped(timedelta(seconds=60), None))
    with locked("locked"), promptly() as do:
        do(partial(stop_keys, stopped, by="ann"))
        change = KeyChange.objects.get()
    assert (change.key, change.verb, change.actor) == ("locked", "block", "ann")
    until = eventually(partial(blocked_by_a_tick, "locked"))
    assert change.after == {"blocked_until": until.isoformat()}


def test_what_two_people_change_at_once_is_in_the_history_as_what_each_has_changed() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    with actors(2) as (ann, bob):
        ann.open()
        ann.do(partial(api.pause, "locked", by="ann"))
        limiting = bob.begin(partial(api.limit, "locked", {"concurrency": 3}, by="bob"))
        bob.wait_blocked(by=ann)
        ann.commit()
        limiting.result()
    assert [*KeyChange.objects.order_by("id").values_list("actor", "before", "after")] == [
        ("ann", {"is_paused": False}, {"is_paused": True}),
        ("bob", {"concurrency": 5}, {"concurrency": 3}),
    ]


def test_eight_workers_drain_a_hot_key_by_ends_alone_while_others_lock_it_for_moments() -> None:
    RateLimitKey.objects.declare("hot", concurrency=8)
    declare_tenants(20)
    CallQueue.objects.send_many(Call(task="noop", keys=["hot", f"tenant:{number % 20}"]) for number in range(300))

    def lock() -> int:
        locks = 0
        while CallQueue.objects.waiting().exists():
            with transaction.atomic():
                RateLimitKey.objects.select_for_update(no_key=True).get(name="hot")
            locks += 1
        return locks

    # What an end leaves to a note since the key is locked, the next end reads, or a tick where none is to come.
    *ran, locks = at_once(*[tick_and_work] * 8, lock)
    assert sum(ran) == 300
    assert locks > 0
    audit()


def test_trips_that_want_two_keys_each_do_not_deadlock_where_each_waits_for_one() -> None:
    for name in ("one", "two"):
        RateLimitKey.objects.declare(name, concurrency=50)
    queues = [f"queue-{number}" for number in range(8)]
    for number in range(40):
        write([["one", "two"] if number % 2 else ["two", "one"]], queue=queues[number % 8])
    assert sum(at_once(*[partial(engine.dispense, queues=[queue]) for queue in queues])) <= 40
    engine.tick()
    assert not CallQueue.objects.waiting().exists()
    audit(has_ended=False)


def test_a_trip_that_waits_for_a_key_holds_none_that_the_holder_may_wait_for() -> None:
    for name in ("one", "two"):
        RateLimitKey.objects.declare(name, concurrency=500)
    queues = [f"queue-{number}" for number in range(100)]
    for queue in queues:
        write([["one", "two"]], queue=queue)
    seen = []
    with actors(1) as (worker,), locked("one") as holder:
        pids = db_admin.backends(worker.name)

        def is_waiting() -> bool:
            return holder.info.backend_pid in db_admin.blockers(pids)

        for queue in queues:  # A trip waits for milliseconds: not each is seen.
            taker = Taker(queues=[queue], becomes=State.DISPATCHED)
            trip = worker.begin(take, taker, room=1)
            while not trip.done() and not is_waiting():
                pass
            with transaction.atomic():
                two = RateLimitKey.objects.select_for_update(no_key=True, skip_locked=True).filter(name="two").exists()
                seen += [two] if is_waiting() else []
            trip.result()
            if seen:
                break
    assert seen == [True]


@pytest.mark.slow
def test_a_process_that_is_frozen_in_a_transaction_keeps_no_row_locked_for_long() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    requeue = partial(ends.requeue, [InFlight(call_id=call.id, ticket=call.ticket)], Requeue.UNDELIVERED)
    assert_thaws(requeue, CallQueue.objects.filter(id=call.id))
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
    assert requeue() == {call.id}


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", [partial(heartbeat.mark_stopped, HERE.id), partial(heartbeat.lose_silent, now=END)], ids=["stop", "lose"]
)
def test_a_process_that_is_frozen_as_it_marks_a_worker_keeps_its_row_locked_no_longer(
    work: Callable[[], object],
) -> None:
    heartbeat.record(HERE, [])
    here = Worker.objects.filter(id=HERE.id)
    assert_thaws(work, here)
    assert here.filter(stopped_at=None, lost_at=None).exists()


@pytest.mark.slow
def test_a_tick_that_is_frozen_as_it_takes_an_override_off_keeps_its_key_locked_no_longer() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    api.override("api", concurrency=2, until=timezone.now() + timedelta(hours=1))
    assert_thaws(partial(control.clear_overrides, now=END), RateLimitKey.objects.filter(name="api"))
    assert RateLimitKey.objects.filter(override_until__isnull=False).exists()
