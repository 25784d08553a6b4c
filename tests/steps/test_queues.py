"""Workers: what their heartbeats register, what is theirs when they go, and lines of messages before them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dispatcher import engine
from dispatcher.audit import audit
from dispatcher.lifecycle import claim, finish, heartbeat
from dispatcher.models import CallQueue, Slot, Worker
from dispatcher.states import State
from tests.builders import HERE, admitted, at, committed, go, key, seen, states, ticket_of, waiting
from tests.steps.conftest import Broker

pytestmark = [committed, pytest.mark.pooler]
GATED = {"queue_grace": 30, "run_lease": 60}


@pytest.fixture(autouse=True)
def _gated(settings: Any) -> Iterator[None]:
    settings.DISPATCHER = GATED
    return


def test_a_worker_that_stopped_does_not_serve_by_the_heartbeats_that_follow() -> None:
    heartbeat.record(HERE, [], now=at(0))
    heartbeat.mark_stopped(HERE.id, now=at(10))
    heartbeat.record(replace(HERE, queues=[]), [], now=at(35))
    assert go(waiting(), now=at(41)) == []


def test_a_heartbeat_registers_a_worker_with_all_that_it_says_of_itself() -> None:
    heartbeat.record(HERE, [], now=at(0))
    heartbeat.record(replace(HERE, queues=["other"], processes=8), [], now=at(10))
    worker = Worker.objects.get()
    said = (worker.id, worker.name, worker.host, worker.pid, worker.pool, worker.processes, worker.queues)
    assert said == (HERE.id, HERE.name, "here", 1, "prefork", 8, ["other"])
    assert (worker.started_at, worker.seen_at, worker.stopped_at, worker.lost_at) == (at(0), at(10), None, None)


def test_a_worker_that_falls_silent_is_lost_and_all_that_it_held_recovered() -> None:
    heartbeat.record(HERE, [], now=at(0))
    fetched, running = admitted(), waiting()
    go(running, now=at(0))
    claimed = claim.claim(running.id, ticket_of(seen(running)), worker=HERE.id, now=at(59))
    assert claimed
    heartbeat.record(HERE, [(fetched.id, ticket_of(fetched))], now=at(1))
    assert engine.recover(now=at(60)) == 0
    # The claim has renewed the lease of the one that runs up to 119; its worker is known to be gone before.
    assert engine.recover(now=at(62)) == 2
    assert Worker.objects.get().lost_at == at(62)
    assert [(seen(call).state, seen(call).attempt) for call in (fetched, running)] == [
        (State.AVAILABLE, 0),
        (State.RETRYABLE, 1),
    ]


def test_what_a_worker_claims_after_it_was_given_up_has_a_lease_of_its_own() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = admitted()
    assert heartbeat.lose_silent(now=at(61))
    # It was frozen, and thaws; its first heartbeat is still to come.
    claim.claim(call.id, ticket_of(call), worker=HERE.id, now=at(70))
    assert engine.recover(now=at(130)) == 0
    assert (seen(call).state, seen(call).attempt) == (State.ACTIVE, 1)
    assert engine.recover(now=at(131)) == 1


def test_a_worker_that_was_lost_and_speaks_again_is_not_lost() -> None:
    heartbeat.record(HERE, [], now=at(0))
    assert [lost.name for lost in heartbeat.lose_silent(now=at(61))] == [HERE.name]
    assert heartbeat.lose_silent(now=at(62)) == []
    heartbeat.record(HERE, [], now=at(63))
    assert Worker.objects.get().lost_at is None


def test_workers_that_are_long_gone_are_forgotten() -> None:
    heartbeat.record(HERE, [], now=at(0))
    engine.cleanup(now=at(86_000))
    assert Worker.objects.exists()
    engine.cleanup(now=at(86_401))
    assert not Worker.objects.exists()


def test_a_heartbeat_notes_that_what_a_worker_holds_was_published() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = waiting()
    go(call, now=at(0))
    CallQueue.objects.update(published_at=None)
    heartbeat.record(HERE, [(call.id, ticket_of(seen(call)))], now=at(5))
    assert seen(call).published_at == at(5)


# Messages in a long line


def test_a_message_in_a_long_line_is_not_lost_before_its_turn(settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": None, "dispatch_lease": 300, "heartbeat": 15}
    first, overtaken, behind = (waiting() for _ in range(3))
    go(first, overtaken, behind, now=at(0))
    for call, seconds in ((overtaken, 1), (first, 20), (behind, 21)):
        CallQueue.objects.filter(id=call.id).update(published_at=at(seconds))
    heartbeat.record(HERE, [(first.id, ticket_of(seen(first)))], now=at(290))
    assert engine.recover(now=at(301)) == 1
    # The line has come to what was published after 20 s: what was published at 1 had its turn, and is lost.
    assert states([first, behind]) == [State.DISPATCHED] * 2
    assert seen(overtaken).dispatched_at == at(301)
    # No call holds anything of the queue any more, so there is no line.
    finish.complete(first.id, ticket_of(seen(first)), result=None, now=at(302))
    CallQueue.objects.filter(id=behind.id).update(published_at=at(21))
    Slot.objects.filter(call=behind).update(lease_until=at(300))
    assert engine.recover(now=at(303)) == 1
    assert seen(behind).dispatched_at == at(303)


def test_a_line_that_does_not_move_on_is_sent_again_less_and_less_often(settings: Any, broker: Broker) -> None:
    settings.DISPATCHER = {"queue_grace": None, "dispatch_lease": 300, "heartbeat": 15}
    key("api", concurrency=2)
    long, call = waiting("api"), waiting("api")
    go(long, call, now=at(0))
    CallQueue.objects.update(published_at=at(0))
    ticket = ticket_of(seen(call))
    repeated = []
    for second in range(0, 3_000, 10):
        heartbeat.record(HERE, [(long.id, ticket_of(seen(long)))], now=at(second))
        assert engine.recover(now=at(second)) == 0
        repeated += [second for message in broker.take() if message.headers["id"] == str(call.id)]
    assert repeated == [310, 630, 1270, 2550]
    assert (seen(call).state, seen(call).ticket, seen(call).published_at) == (State.DISPATCHED, ticket, at(2550))
    assert audit(now=at(3_000)).is_ok
