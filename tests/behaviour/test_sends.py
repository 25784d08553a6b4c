"""Sends: in the caller's transaction, all or none; a rollback leaves nothing, and a commit loses nothing.

Keys and lanes that do not exist yet are made when they are needed first.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from dispatcher import api
from dispatcher.errors import CallNeverRuns, DispatcherError, UnknownKey
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.drive import Drive, ids
from tests.faults import dying, manual

NEW = "tenant:new"
"""A key that does not exist, and that a template makes with a concurrency of 2."""


@pytest.fixture(autouse=True)
def _templates(settings: Any, drive: Drive) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 2}}}
    drive.key()


def key_names() -> set[str]:
    return set(RateLimitKey.objects.values_list("name", flat=True))


every_key = pytest.mark.parametrize("key", ["api", NEW])


# Transactions


@every_key
def test_nothing_starts_before_the_commit_and_all_of_it_together_after(drive: Drive, key: str) -> None:
    with transaction.atomic():
        calls = [drive.send(key), *drive.send_many(2, key)]
        assert drive.states(calls) == [State.AVAILABLE] * 3
    assert drive.drain(room=3) == ids(calls)


@every_key
def test_a_rollback_leaves_no_call_and_no_key(drive: Drive, key: str) -> None:
    before = key_names()
    with transaction.atomic():
        drive.send(key)
        drive.send_many(3, key)
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            drive.send(key)
            transaction.set_rollback(True)
        kept = drive.send("api")
    assert [*CallQueue.objects.all()] == [kept]
    assert key_names() == before
    drive.forward(1)
    assert ids(drive.take(5)) == [kept.id]


@every_key
def test_what_a_process_has_sent_that_dies_at_its_commit_starts_within_two_ticks(drive: Drive, key: str) -> None:
    with dying():
        calls = [drive.send(key), *drive.send_many(2, key)]
    drive.tick()
    drive.tick()
    assert drive.drain(room=3) == ids(calls)


def test_with_autocommit_off_a_send_commits_nothing_by_itself(drive: Drive) -> None:
    before = key_names()
    with manual():
        drive.send("api")
        drive.send(NEW)
        drive.send_many(2, "tenant:other")
    assert (CallQueue.objects.count(), key_names()) == (0, before)
    with manual():
        calls = [drive.send("api"), drive.send(NEW)]
        transaction.commit()
    drive.tick()
    drive.tick()
    assert sorted(ids(drive.take(5))) == ids(calls)


@pytest.mark.parametrize(
    "verb",
    [
        lambda _: api.pause("api"),
        lambda _: api.limit("api", {"concurrency": 1}),
        lambda _: api.block("api", 9),
        lambda drive: drive.override(seconds=9, concurrency=1),
        lambda _: api.cancel(CallQueue.objects.all()),
        lambda _: api.run_now(CallQueue.objects.all()),
    ],
    ids=["pause", "limit", "block", "override", "cancel", "run now"],
)
def test_with_autocommit_off_what_people_do_is_rolled_back_with_their_transaction(
    drive: Drive, verb: Callable[[Drive], object]
) -> None:
    drive.limit(concurrency=0)
    drive.send("api")
    before = (CallQueue.objects.values().get(), RateLimitKey.objects.values().get(name="api"))
    with manual():
        verb(drive)
        assert (CallQueue.objects.values().get(), RateLimitKey.objects.values().get(name="api")) != before
    assert (CallQueue.objects.values().get(), RateLimitKey.objects.values().get(name="api")) == before


def test_a_key_that_the_transaction_has_declared_is_known_in_it_and_no_other(drive: Drive) -> None:
    with transaction.atomic():
        drive.key("own", concurrency=1)
        calls = [drive.send("own"), drive.send("own")]
        with pytest.raises(UnknownKey, match="typo"):
            drive.send("typo", NEW)
        with pytest.raises(CallNeverRuns):
            drive.send(costs={NEW: 3})
    assert ids(drive.take(2)) == ids(calls[:1])


# Many


def test_many_start_in_the_order_given(drive: Drive) -> None:
    calls = drive.send_many(20, "api")
    assert drive.drain(room=7) == ids(calls)


def test_many_are_written_all_or_none(drive: Drive) -> None:
    drive.key("small", concurrency=1)
    good = api.Call("noop", keys=["small", NEW], queue=drive.queue)
    for wrong in ({"keys": ["typo"]}, {"keys": {"small": 2}}, {"args": [object()]}):
        with pytest.raises(DispatcherError):
            api.send_many([good, api.Call("noop", queue=drive.queue, **wrong)])
    assert not CallQueue.objects.exists()
    assert api.send_many([]) == []


def test_many_with_different_keys_start_as_each_of_them_allows(drive: Drive) -> None:
    names = [["tenant:a"], ["tenant:b"], ["tenant:a", "tenant:b"], []] * 2
    calls = api.send_many([api.Call("noop", keys=each, queue=drive.queue) for each in names])
    drive.tick()
    started = {call.call for call in drive.take(8)}
    assert {calls[3].id, calls[7].id} <= started
    assert (drive.use("tenant:a"), drive.use("tenant:b")) == (2, 2)


# Keys


def test_a_template_makes_a_key_when_it_is_first_seen_and_its_limits_hold(drive: Drive) -> None:
    calls = drive.send_many(3, NEW)
    assert ids(drive.take(3)) == ids(calls[:2])
    assert drive.key(NEW).concurrency == 2
    with pytest.raises(UnknownKey):
        drive.send("tenants:new")


def test_a_call_may_bring_the_limits_of_a_new_key_and_never_those_of_one_that_exists(drive: Drive) -> None:
    calls = [drive.send(rate_limit={"key": "own", "concurrency": number}) for number in (1, 5)]
    assert ids(drive.take(2)) == ids(calls[:1])
    assert drive.key("own", concurrency=9).concurrency == 1


def test_a_key_that_exists_when_a_left_call_gets_its_lane_keeps_its_limits(drive: Drive) -> None:
    with dying():
        calls = drive.send_many(2, NEW)
    drive.key(NEW, concurrency=1)
    drive.tick()
    assert ids(drive.take(2)) == ids(calls[:1])


def test_the_key_of_a_queue_that_a_template_makes_limits_it(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"queue:*": {"concurrency": 1}}}
    news = drive.beside(drive.delivery, "news")
    calls = news.send_many(2)
    assert ids(news.take(2)) == ids(calls[:1])
    assert news.use("queue:news") == 1


# What people and time do to a call that its sender has left behind


def left(drive: Drive, **fields: Any) -> CallQueue:
    """Send a call to a new key from a process that dies at its commit."""
    with dying():
        return drive.send(NEW, **fields)


def test_a_call_that_was_left_behind_is_cancelled_and_retried(drive: Drive) -> None:
    call = left(drive)
    assert api.cancel(call) == [call.id]
    drive.tick()
    assert drive.state(call) is State.CANCELLED
    assert api.retry(call) == [call.id]
    assert ids(drive.take()) == [call.id]


def test_a_call_that_was_left_behind_is_run_now_or_activated(drive: Drive) -> None:
    calls = [left(drive, scheduled_at=drive.at(60)), left(drive)]
    CallQueue.objects.filter(id=calls[1].id).update(state=State.PENDING)
    assert api.run_now(calls[0]) == [calls[0].id]
    assert api.activate(calls[1]) == [calls[1].id]
    assert sorted(ids(drive.take(2))) == ids(calls)


def test_a_call_that_was_left_behind_expires(drive: Drive) -> None:
    call = left(drive, expires_at=drive.at(10))
    drive.clock.forward(10)
    drive.tick()
    assert drive.state(call) is State.DISCARDED


def test_a_call_that_was_left_behind_comes_at_its_time(drive: Drive) -> None:
    call = left(drive, scheduled_at=drive.at(60))
    drive.forward(59)
    assert drive.take() == []
    drive.forward(1)
    assert ids(drive.take()) == [call.id]


def test_a_key_that_was_deleted_meanwhile_limits_a_left_call_no_more(drive: Drive) -> None:
    shut = drive.key("shut", concurrency=0)
    with dying():
        calls = drive.send_many(3, "shut", NEW)
    shut.delete()
    drive.tick()
    assert ids(drive.take(3)) == ids(calls[:2])
