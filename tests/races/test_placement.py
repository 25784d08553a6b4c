"""Keys and lanes that do not exist yet are never made in a caller's transaction: no sender waits for another one."""

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import Actor, actors, concurrent, holding
from tests.races.traffic import write

pytestmark = [concurrent, pytest.mark.server]

PROMPT_S = 2.0
"""What a send takes at the most beside a transaction that would never end; far more than it may wait for locks."""


@pytest.fixture(autouse=True)
def _templates(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}, "queue:mail": {"concurrency": 100}}}


def open_impatiently(actor: Actor, *, isolation: str = "READ COMMITTED") -> None:
    """Open a transaction in which a statement that has to wait for a lock fails at once."""
    actor.open()
    actor.do(run, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    actor.do(run, "SET LOCAL lock_timeout = '50ms'")


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def send(*keys: str, **fields: Any) -> CallQueue:
    return CallQueue.objects.send("noop", keys=keys, **fields)


def send_within(*keys: str, **fields: Any) -> CallQueue:
    with transaction.atomic():
        return send(*keys, **fields)


def promptly(work: Callable[[], CallQueue]) -> CallQueue:
    began = time.monotonic()
    call = work()
    assert time.monotonic() - began < PROMPT_S
    return call


def forget_hooks() -> None:
    # Looked up on the thread whose connection it is.
    connection.run_on_commit.clear()


def die_at_the_commit(actor: Actor) -> None:
    """Commit, and do nothing of what was to be done after it."""
    actor.do(forget_hooks)
    actor.commit()


def now(call: CallQueue) -> CallQueue:
    return CallQueue.objects.get(id=call.id)


# Senders beside senders


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_senders_to_new_keys_in_opposite_order_neither_wait_nor_deadlock(isolation: str) -> None:
    with actors(2) as (first, second):
        for actor in (first, second):
            open_impatiently(actor, isolation=isolation)
        sent = [
            actor.do(partial(send, key, queue="mail"))
            for actor, key in ((first, "tenant:a"), (second, "tenant:b"), (first, "tenant:b"), (second, "tenant:a"))
        ]
        assert not RateLimitKey.objects.filter(name__startswith="tenant:").exists()
        assert not Lane.objects.exists()
        second.commit()
        first.commit()
    assert {now(call).state for call in sent} == {State.DISPATCHED}
    assert RateLimitKey.objects.filter(name__startswith="tenant:").count() == Lane.objects.count() == 2
    assert RateLimitKey.objects.filter(name="queue:mail").count() == 1
    audit(has_ended=False)


@pytest.mark.parametrize("sends", [send, send_within])
def test_a_sender_returns_promptly_beside_a_transaction_that_declared_its_key(
    sends: Callable[..., CallQueue],
) -> None:
    with actors(1) as (admin,):
        admin.open()
        admin.do(partial(RateLimitKey.objects.declare, "tenant:new", concurrency=1))
        calls = [promptly(partial(sends, "tenant:new")) for _ in range(2)]
        assert [(now(call).state, now(call).lane_id) for call in calls] == [(State.AVAILABLE, None)] * 2
        assert engine.tick() == 0
        admin.commit()
    engine.tick()
    assert [now(call).state for call in calls] == [State.DISPATCHED, State.AVAILABLE]
    assert RateLimitKey.objects.get(name="tenant:new").concurrency == 1
    audit(has_ended=False)


def test_a_key_that_another_transaction_declared_and_rolled_back_is_made_by_the_tick() -> None:
    with actors(1) as (admin,):
        admin.open()
        admin.do(partial(RateLimitKey.objects.declare, "api", concurrency=1))
        call = promptly(partial(send, rate_limit={"key": "api", "concurrency": 2, "rate": [7, "PT1M"]}))
        admin.roll_back()
    engine.tick()
    assert now(call).state == State.DISPATCHED
    key = RateLimitKey.objects.get(name="api")
    assert (key.concurrency, key.rate_limit, key.rate_period) == (2, 7, timedelta(minutes=1))
    audit(has_ended=False)


# What others see of it


def test_one_open_transaction_does_not_stop_the_calls_of_other_keys() -> None:
    others = [f"tenant:{number}" for number in range(20)]
    with actors(2) as (admin, sender):
        sender.open()
        calls = {name: sender.do(send, name) for name in (*others[:7], "tenant:held", *others[7:])}
        die_at_the_commit(sender)
        admin.open()
        admin.do(RateLimitKey.objects.declare, "tenant:held")
        began = time.monotonic()
        engine.tick()
        engine.tick()
        assert time.monotonic() - began < 2 * PROMPT_S
        held = now(calls.pop("tenant:held"))
        assert (held.state, held.lane_id) == (State.AVAILABLE, None)
        assert {now(call).state for call in calls.values()} == {State.DISPATCHED}
        admin.commit()
    engine.tick()
    assert now(held).state == State.DISPATCHED
    audit(has_ended=False)


def test_a_call_that_two_place_at_once_is_placed_once() -> None:
    with actors(2) as (sender, ticker):
        sender.open()
        call = sender.do(send, "tenant:new")
        with holding("LOCK TABLE dispatcher_lane IN SHARE MODE") as gate:
            committing = sender.begin(lambda: sender.transaction.__exit__(None, None, None))
            sender.wait_blocked(by=gate)
            placing = ticker.begin(engine.place_unplaced)
            ticker.wait_blocked_or_done(placing)
            gate.rollback()
            committing.result()
            placing.result()
    engine.tick()
    assert now(call).state == State.DISPATCHED
    assert Lane.objects.count() == 1
    audit(has_ended=False)


# Lanes that are there


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_trip_over_its_lane_neither_waits_for_an_open_sender_nor_fails_it(isolation: str) -> None:
    RateLimitKey.objects.declare("api", concurrency=9)
    (waiting,) = write([["api"]])
    with actors(2) as (sender, dispenser):
        open_impatiently(sender, isolation=isolation)
        sender.do(Lane.objects.count)
        assert dispenser.do(engine.dispense) == 1
        call = sender.do(send, "api")
        assert call.lane_id == waiting.lane_id
        (second,) = dispenser.do(write, [["api"]])
        assert dispenser.do(engine.dispense) == 1
        assert now(second).state == State.DISPATCHED
        sender.commit()
    assert now(call).state == State.DISPATCHED
    audit(has_ended=False)
