"""The machine itself: it plays every order, finds what is planted, and leaves out nothing that makes a difference."""

from functools import partial

import pytest
from django.db import transaction
from django.db.models import F

from dispatcher.lifecycle import control
from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.models import CallQueue, RateLimitKey
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent
from tests.races.traffic import in_flight

pytestmark = concurrent


def count(name: str, times: int = 1) -> None:
    for _ in range(times):
        RateLimitKey.objects.filter(name=name).update(concurrency=F("concurrency") + 1)


def counted(name: str) -> int:
    return RateLimitKey.objects.get(name=name).concurrency or 0


def test_every_order_of_two_and_three_steps_is_played_once() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)
    found = explore(
        {"two": partial(count, "api", 2), "three": partial(count, "api", 3)},
        lambda *_: None,
        at_least=50,
        plays_all=True,
    )
    assert (found.schedules, found.cut_short, found.steps) == (10, 0, 50)


def test_an_update_that_is_lost_is_found_and_played_again_alone() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)

    def read_and_write() -> None:
        RateLimitKey.objects.filter(name="api").update(concurrency=counted("api") + 1)

    def nothing_is_lost(*_: None) -> None:
        assert counted("api") == 2

    lossy = {"one": read_and_write, "other": read_and_write}
    with pytest.raises(AssertionError, match="SCHEDULE=0101 "):
        explore(lossy, nothing_is_lost, at_least=4)
    with pytest.raises(AssertionError, match="SCHEDULE=0101 "):
        explore(lossy, nothing_is_lost, at_least=4, schedule="0101")
    assert explore(lossy, nothing_is_lost, at_least=4, schedule="0011").schedules == 1


def test_a_deadlock_is_found() -> None:
    for name in ("one", "other"):
        RateLimitKey.objects.declare(name, concurrency=0)

    def both(first: str, second: str) -> None:
        with transaction.atomic():
            count(first)
            count(second)

    with pytest.raises(AssertionError, match="deadlock detected"):
        explore(
            {"up": partial(both, "one", "other"), "down": partial(both, "other", "one")}, lambda *_: None, at_least=4
        )


def test_who_waits_for_a_lock_goes_on_when_it_is_given_back() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)

    def twice() -> int:
        with transaction.atomic():
            count("api", 2)
            return counted("api")

    def in_turn(*seen: int) -> None:
        assert sorted(seen) == [2, 4]

    found = explore({"one": twice, "other": twice}, in_turn, at_least=60, plays_all=True)
    assert sorted(set(found.results)) == [(2, 4), (4, 2)]
    # The other's first step can come at four places: before it, the one that holds the row goes on to its commit.
    assert found.schedules > 2


def test_what_is_left_out_ends_no_other_way() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")

    def start() -> bool:
        return isinstance(claim(call.id, call.ticket), Claimed)

    cast = {
        "admin": lambda: len(control.cancel([call.id])),
        "worker": start,
        "reader": lambda: [CallQueue.objects.in_flight().count() for _ in range(2)],
    }
    least, whole = (explore(cast, lambda *_: None, at_least=150, plays_all=plays_all) for plays_all in (False, True))
    assert {str(ends) for ends in least.results} == {str(ends) for ends in whole.results}
    assert len({str(ends) for ends in whole.results}) == 4
    assert (whole.schedules, whole.cut_short) == (60, 0)
    assert least.steps < whole.steps


def test_a_machine_that_plays_too_little_is_found_out() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)
    with pytest.raises(AssertionError, match="only 2 steps"):
        explore({"one": partial(count, "api", 2)}, lambda *_: None, at_least=3)
