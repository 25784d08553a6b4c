"""Invariants 2 to 4, in every order of steps: one start per ticket, one end per attempt, slots while in flight."""

import json
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest

from dispatcher import api, ending, engine
from dispatcher.engine import ends
from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import held, renew
from tests.interleavings.actions import LOST, finish_one, give_up, let_leases_run_out, running
from tests.interleavings.stepper import explore, wide
from tests.races.lockstep import concurrent
from tests.races.traffic import ended, in_flight, write

pytestmark = concurrent


@pytest.fixture(autouse=True)
def api_key() -> RateLimitKey:
    return RateLimitKey.objects.declare("api", concurrency=2, rate=(9, 3600))


def started(call: CallQueue) -> bool:
    return isinstance(claim(call.id, call.ticket), Claimed)


def now(call: CallQueue) -> tuple[str, int, UUID | None, int]:
    """Return state, attempts and ticket of a call, and how many slots it holds."""
    row = CallQueue.objects.get(id=call.id)
    return row.state, row.attempt, row.ticket, Slot.objects.filter(call=call).count()


def test_three_claims_with_one_ticket() -> None:
    (call,) = in_flight("api")

    def one_starts(*starts: bool) -> None:
        assert sorted(starts) == [False, False, True]
        assert now(call) == (State.ACTIVE, 1, call.ticket, 1)

    explore({name: partial(started, call) for name in ("one", "two", "three")}, one_starts, at_least=15)


@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "held"])
def test_a_claim_and_a_recovery(*, is_expired: bool) -> None:
    (call,) = in_flight("api")
    if is_expired:
        let_leases_run_out()

    def one_has_it(is_started: bool, recovered: int) -> None:
        if is_started:
            assert recovered == 0
            assert now(call) == (State.ACTIVE, 1, call.ticket, 1)
        else:
            assert (is_expired, recovered) == (True, 1)
            state, attempt, ticket, slots = now(call)
            assert (state, attempt, slots) == (State.DISPATCHED, 0, 1)
            assert ticket != call.ticket

    explore({"worker": partial(started, call), "recovery": engine.recover}, one_has_it, at_least=10)


@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "held"])
def test_a_finish_and_a_recovery(*, is_expired: bool) -> None:
    call = running("api")
    if is_expired:
        let_leases_run_out()

    def one_ended_it(is_ours: bool, recovered: int) -> None:
        assert is_ours + recovered == 1
        assert is_ours or is_expired
        assert now(call) == (State.COMPLETED if is_ours else State.RETRYABLE, 1, None, 0)
        assert len(CallQueue.objects.get(id=call.id).errors) == recovered

    explore({"worker": partial(finish_one, call), "recovery": engine.recover}, one_ended_it, at_least=20)


@pytest.mark.parametrize("recoveries", [1, pytest.param(2, marks=wide)])
def test_a_claim_a_finish_and_recoveries(recoveries: int) -> None:
    """The whole life of a worker that was given up: it starts, or ends, only what was not taken from it."""
    (call,) = in_flight("api")
    let_leases_run_out()

    def live() -> tuple[bool, bool]:
        is_started = started(call)
        return is_started, is_started and finish_one(call)

    def one_has_it(lived: tuple[bool, bool], *recovered: int) -> None:
        assert lived in {(True, True), (False, False)}
        assert lived[1] + sum(recovered) == 1
        state, attempt, ticket, slots = now(call)
        if lived[1]:
            assert (state, attempt, ticket, slots) == (State.COMPLETED, 1, None, 0)
        else:
            assert (state, attempt, slots) == (State.DISPATCHED, 0, 1)
            assert ticket != call.ticket

    others = {f"recovery {number}": give_up for number in range(recoveries)}
    explore({"worker": live, **others}, one_has_it, at_least=40)


def test_three_finishes_with_one_ticket() -> None:
    call = running("api")
    endings = [ending.completed(1), ending.completed(2), ending.failed(LOST, attempt=1, policy={"max_attempts": 1})]

    def end(how: ending.Ending) -> bool:
        return ends.record_one(replace(ended(call), ending=how))

    def one_counts(*recorded: bool) -> None:
        assert sorted(recorded) == [False, False, True]
        counted = endings[recorded.index(True)]
        assert CallQueue.objects.get(id=call.id).result == (counted.result and json.loads(counted.result))
        assert now(call) == (counted.state, 1, None, 0)

    explore({str(number): partial(end, how) for number, how in enumerate(endings)}, one_counts, at_least=15)


def test_a_heartbeat_and_a_recovery() -> None:
    call = running("api")
    let_leases_run_out()

    def it_is_held_or_lost(renewed: int, recovered: int) -> None:
        assert renewed + recovered == 1
        assert now(call) == ((State.ACTIVE, 1, call.ticket, 1) if renewed else (State.RETRYABLE, 1, None, 0))

    cast = {"heart": partial(renew, [(call.id, call.ticket)]), "recovery": give_up}
    explore(cast, it_is_held_or_lost, at_least=15)


def test_a_loss_and_a_finish() -> None:
    call = running("api")

    def one_ended_it(is_lost: bool, is_ours: bool) -> None:
        assert is_lost + is_ours == 1
        assert now(call) == (State.COMPLETED if is_ours else State.RETRYABLE, 1, None, 0)

    cast = {
        "main": partial(engine.lose, [held(call)], LOST, is_crash=True),
        "worker": partial(finish_one, call),
    }
    explore(cast, one_ended_it, at_least=22)


def test_a_loss_and_a_claim() -> None:
    """The main process gives a call up whose child is just claiming it."""
    (call,) = in_flight("api")

    def attempts_are_right(is_lost: bool, is_started: bool) -> None:
        state, attempt, ticket, slots = now(call)
        assert is_lost
        assert ticket != call.ticket
        if is_started:
            assert (state, attempt, slots) == (State.RETRYABLE, 1, 0)
        else:
            assert (state, attempt, slots) == (State.DISPATCHED, 0, 1)

    cast = {"main": partial(engine.lose, [held(call)], LOST, is_crash=True), "worker": partial(started, call)}
    explore(cast, attempts_are_right, at_least=20)


def test_a_cancel_and_a_claim() -> None:
    (call,) = in_flight("api")

    def one_has_it(cancelled: list[UUID], is_started: bool) -> None:
        assert bool(cancelled) is not is_started
        assert now(call) == ((State.ACTIVE, 1, call.ticket, 1) if is_started else (State.CANCELLED, 0, None, 0))

    explore({"admin": partial(api.cancel, [call.id]), "worker": partial(started, call)}, one_has_it, at_least=25)


def test_a_cancel_and_a_trip_that_dispatches_the_call() -> None:
    (call,) = write([["api"]])

    def it_ends(cancelled: list[UUID], _: int) -> None:
        assert cancelled == [call.id]
        assert now(call) == (State.CANCELLED, 0, None, 0)

    explore({"admin": partial(api.cancel, [call.id]), "dispenser": engine.dispense}, it_ends, at_least=140)
