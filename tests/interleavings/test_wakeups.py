"""Invariant 6: whatever the order of the steps, no call with room is left waiting, and none waits for a tick."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.lifecycle import send
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import erase, held
from tests.interleavings.actions import (
    LOST,
    all_are_admitted,
    finish_one,
    give_up,
    let_leases_run_out,
    no_call_waits,
    running,
    send_in_transaction,
    slowly,
    wake_due,
)
from tests.interleavings.stepper import explore, wide
from tests.races.lockstep import concurrent
from tests.races.traffic import declare_tenants, in_flight, write

pytestmark = [concurrent, pytest.mark.slow]


@pytest.mark.smoke
def test_a_send_and_a_trip_that_puts_the_lane_to_sleep() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    in_flight("api")
    explore(
        {"sender": partial(send_in_transaction, "api"), "dispenser": engine.dispense}, all_are_admitted, at_least=40
    )


@pytest.mark.smoke
def test_an_end_and_a_trip_that_parks_a_lane() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(1)
    call = running("api")
    write([["api", "tenant:0"]])
    explore(
        {"worker": partial(slowly, partial(finish_one, call)), "dispenser": engine.dispense},
        all_are_admitted,
        at_least=20,
    )


def test_an_end_and_a_send_to_the_lane_that_it_lets_in() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    call = running("api")
    CallQueue.objects.send("noop", keys=["api"])
    explore(
        {"worker": partial(finish_one, call), "sender": partial(send_in_transaction, "api")},
        no_call_waits,
        at_least=15,
    )


@pytest.mark.smoke
@pytest.mark.parametrize("limits", [{}, {"rate": (4, 3600)}], ids=["plain", "window"])
def test_two_ends_that_admit_and_two_lanes_parked_on_their_key(limits: dict[str, Any]) -> None:
    RateLimitKey.objects.declare("api", concurrency=2, **limits)
    declare_tenants(2)
    calls = running("api"), running("api")
    for number in range(2):
        CallQueue.objects.send("noop", keys=["api", f"tenant:{number}"])

    one, other = (partial(slowly, partial(finish_one, call)) for call in calls)
    explore({"one": one, "other": other}, all_are_admitted, at_least=10)


def test_an_end_that_admits_and_an_end_that_frees_the_key_where_the_lane_is_parked_then() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    RateLimitKey.objects.declare("other", concurrency=2)
    first, second = running("api", "other"), running("other")
    for _ in range(2):
        CallQueue.objects.send("noop", keys=["api", "other"])
    work = {name: partial(slowly, partial(finish_one, call)) for name, call in (("one", first), ("other", second))}
    explore(work, no_call_waits, at_least=4)


OPENINGS: dict[str, Callable[[], Any]] = {
    "resume": partial(api.resume, "api"),
    "limit": partial(api.limit, "api", {"concurrency": 1}),
    "end_override": partial(api.end_override, "api"),
}


@pytest.mark.parametrize("verb", OPENINGS)
def test_an_opening_and_a_trip_that_parks_a_lane(verb: str) -> None:
    RateLimitKey.objects.declare("api", concurrency=0 if verb == "limit" else 1)
    if verb == "resume":
        api.pause("api")
    if verb == "end_override":
        api.override("api", until=timezone.now() + timedelta(hours=1), concurrency=0)
    write([["api"]])
    explore({"admin": OPENINGS[verb], "dispenser": engine.dispense}, all_are_admitted, at_least=80)


def test_a_raised_limit_and_a_trip_that_sets_a_call_aside() -> None:
    RateLimitKey.objects.declare("api", concurrency=10)
    send.write([send.draft(Call(keys={"api": 8}), task="noop", queue="celery")])
    RateLimitKey.objects.update(concurrency=5)
    raising = partial(api.limit, "api", {"concurrency": 10})
    explore({"admin": raising, "dispenser": engine.dispense}, all_are_admitted, at_least=80, limits_changed=True)


@wide
def test_a_cancel_and_a_trip_that_parks_a_lane() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(1)
    (admitted,) = in_flight("api")
    (waiting,) = write([["api", "tenant:0"]])

    def the_other_is_in(*_: Any) -> None:
        assert CallQueue.objects.get(id=waiting.id).state == State.DISPATCHED

    explore({"admin": partial(api.cancel, [admitted.id]), "dispenser": engine.dispense}, the_other_is_in, at_least=1000)


def test_a_loss_and_a_trip_that_puts_the_lane_to_sleep() -> None:
    (call,) = in_flight()
    losing = partial(engine.lose, [held(call)], LOST, is_crash=True)
    explore({"worker": losing, "dispenser": engine.dispense}, all_are_admitted, at_least=40)


def test_a_recovery_and_a_trip_that_puts_the_lane_to_sleep() -> None:
    in_flight()
    let_leases_run_out()
    explore({"recovery": give_up, "dispenser": engine.dispense}, all_are_admitted, at_least=100)


@pytest.mark.parametrize("is_noted", [False, True], ids=["asleep", "noted"])
def test_a_call_whose_time_comes_and_a_trip_that_puts_its_lane_to_sleep(*, is_noted: bool) -> None:
    CallQueue.objects.send("noop", scheduled_at=timezone.now() + timedelta(hours=1))
    CallQueue.objects.update(scheduled_at=timezone.now())
    if is_noted:
        erase(*write([[]]))
    explore({"ticker": wake_due, "dispenser": engine.dispense}, all_are_admitted, at_least=10)
