"""Workers: what their heartbeats register, what is theirs when they go, and lines of messages before them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from dispatcher import engine, sql
from dispatcher.audit import audit
from dispatcher.errors import CallInvalid
from dispatcher.lifecycle import claim, heartbeat
from dispatcher.models import CallQueue, Queue, Worker
from dispatcher.states import State
from tests.builders import HERE, admitted, at, committed, go, key, seen, ticket_of, waiting
from tests.clock import stopped_clock
from tests.steps.conftest import Broker

pytestmark = [committed, pytest.mark.pooler]
GATED = {"queue_grace": 30, "run_lease": 60}


@pytest.fixture(autouse=True)
def _gated(settings: Any) -> Iterator[None]:
    settings.DISPATCHER = GATED
    return


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
    with stopped_clock(at(59)):
        assert isinstance(claim.claim(running.id, ticket_of(seen(running)), worker=HERE.id), claim.Claimed)
    heartbeat.record(HERE, [(fetched.id, ticket_of(fetched))], now=at(1))
    assert engine.recover(now=at(60)) == 0
    # The claim is a later word of the worker's: what runs by it has a lease up to 119.
    with stopped_clock(at(62)):
        assert engine.recover(now=at(62)) == 1
    assert Worker.objects.get().lost_at is None
    with stopped_clock(at(120)):
        assert engine.recover(now=at(120)) == 1
    assert Worker.objects.get().lost_at == at(120)
    assert [(seen(call).state, seen(call).attempt) for call in (fetched, running)] == [
        (State.AVAILABLE, 0),
        (State.RETRYABLE, 1),
    ]


def test_workers_that_are_long_gone_are_forgotten() -> None:
    heartbeat.record(HERE, [], now=at(0))
    engine.cleanup(now=at(86_000))
    assert Worker.objects.exists()
    engine.cleanup(now=at(86_401))
    assert not Worker.objects.exists()


# Queues that are full


def test_a_trip_to_a_full_queue_is_not_made_again(settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": None, "dispatch_ahead": 1}
    for _ in range(2):
        CallQueue.objects.send("noop")
    with mock.patch.object(sql, "ask", wraps=sql.ask) as ask:
        assert engine.dispense() == 0
    assert [asked.args[0] for asked in ask.mock_calls].count("take") == 1


# Messages in a long line


def test_a_line_that_does_not_move_on_is_sent_again_less_and_less_often(settings: Any, broker: Broker) -> None:
    settings.DISPATCHER = {"queue_grace": None, "dispatch_lease": 300, "heartbeat": 15}
    key("api", concurrency=2)
    long, call = waiting("api"), waiting("api")
    go(long, call, now=at(0))
    CallQueue.objects.update(published_at=at(0))
    ticket = ticket_of(seen(call))
    repeated = []
    for second in range(10, 3_000, 20):
        heartbeat.record(HERE, [(long.id, ticket_of(seen(long)))], now=at(second))
        assert engine.recover(now=at(second)) == 0
        repeated += [second for message in broker.take() if message.headers["id"] == str(call.id)]
    assert repeated == [310, 630, 1270, 2550]
    assert (seen(call).state, seen(call).ticket, seen(call).published_at) == (State.DISPATCHED, ticket, at(2550))
    assert audit(now=at(3_000)).is_ok


@pytest.mark.parametrize("delivery", ["broker", "http"])
def test_a_weight_without_direct_delivery_is_refused_by_name_and_not_by_the_constraint(delivery: str) -> None:
    with pytest.raises(CallInvalid, match=r"^weight: 3 has an effect with direct delivery only"):
        Queue.objects.create(name="mail", delivery=delivery, weight=3)
    queue = Queue.objects.create(name="mail", delivery="direct", weight=3)
    queue.delivery = delivery
    with pytest.raises(CallInvalid, match=r"^weight: "):
        queue.save()
    assert Queue.objects.get().delivery == "direct"
