"""Queues: calls go to workers that are there, and no more at once than are allowed on their way."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from dispatcher import engine
from dispatcher.audit import audit
from dispatcher.engine import workers
from dispatcher.lifecycle import claim, finish, heartbeat, schedule
from dispatcher.models import CallQueue, Lane, LeaseCheck, Slot, Worker
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, admitted, at, committed, dispatched, go, key, seen, started, states, ticket_of, waiting
from tests.steps.conftest import Broker

pytestmark = [committed, pytest.mark.pooler]
GATED = {"queue_grace": 30, "run_lease": 60}
LONG_AGO = at(-1_000_000_000)


@pytest.fixture(autouse=True)
def _gated(settings: Any) -> Iterator[None]:
    settings.DISPATCHER = GATED
    return


def send(count: int = 1, **fields: Any) -> list[CallQueue]:
    return [CallQueue.objects.send("noop", **fields) for _ in range(count)]


# Without workers


def test_a_queue_without_workers_admits_nothing_and_holds_its_lanes() -> None:
    (call,) = send()
    (bulk,) = CallQueue.objects.send_many([Call(task="noop", priority=5)])
    assert states([call, bulk]) == [State.AVAILABLE] * 2
    assert set(Lane.objects.values_list("is_held", "is_awake", "parked_on")) == {(True, False, None)}
    assert not Slot.objects.exists()


def test_a_queue_without_workers_holds_no_room_that_another_could_use() -> None:
    key("api", concurrency=1)
    heartbeat.record(replace(HERE, queues=["there"]), [])
    (lonely,) = send(keys=["api"], queue="nowhere")
    (served,) = send(keys=["api"], queue="there")
    assert states([lonely, served]) == [State.AVAILABLE, State.DISPATCHED]


def test_a_lane_that_its_queue_holds_leaves_the_room_of_its_key_to_those_behind() -> None:
    key("api", concurrency=1)
    here = replace(HERE, queues=["there", "nowhere"])
    heartbeat.record(here, [])
    (running,) = send(keys=["api"], queue="there")
    parked, behind = send(keys=["api"], queue="nowhere")[0], send(keys=["api"], queue="there")[0]
    assert {lane.parked_on.name for lane in Lane.objects.filter(parked_on__isnull=False)} == {"api"}
    heartbeat.record(replace(here, queues=["there"]), [])
    running = seen(running)
    engine.execute(running.id, ticket_of(running), lambda: None)
    assert states([parked, behind]) == [State.AVAILABLE, State.DISPATCHED]


def test_a_worker_that_comes_lets_its_queues_go_on_with_its_first_heartbeat() -> None:
    calls = send(3)
    workers.record_heartbeat(HERE, [])
    assert states(calls) == [State.DISPATCHED] * 3
    assert Worker.objects.get().name == HERE.name


def test_a_worker_that_comes_back_lets_them_go_on_as_well() -> None:
    heartbeat.record(HERE, [])
    assert not heartbeat.record(HERE, []).is_back
    Worker.objects.update(serves_until=LONG_AGO)
    calls = send(3)
    assert states(calls) == [State.AVAILABLE] * 3
    workers.record_heartbeat(HERE, [])
    assert states(calls) == [State.DISPATCHED] * 3


def test_a_tick_finds_the_queues_whose_workers_are_back() -> None:
    calls = send(3)
    heartbeat.record(HERE, [])
    assert schedule.ask_due_queues().rows() == ["celery"]
    assert engine.tick() == 3
    assert states(calls) == [State.DISPATCHED] * 3
    assert schedule.ask_due_queues().rows() == []


def test_a_newcomer_does_not_pass_those_that_its_queue_has_held() -> None:
    (first,) = CallQueue.objects.send_many([Call(task="noop", priority=5)])
    heartbeat.record(HERE, [])
    (second,) = send()
    assert states([first, second]) == [State.DISPATCHED] * 2
    assert [call.id for call in CallQueue.objects.order_by("slots__id")] == [first.id, second.id]


def test_ten_thousand_held_lanes_are_not_looked_at_while_no_worker_serves_their_queue() -> None:
    for number in range(30):
        key(f"tenant:{number}")
        send(keys=[f"tenant:{number}"])
    assert Lane.objects.filter(is_held=True).count() == 30
    assert engine.tick() == 0
    assert schedule.ask_due_queues().rows() == []


# The grace


@pytest.mark.parametrize(("seconds", "admits"), [(59, 1), (61, 0)])
def test_a_worker_is_believed_to_live_for_a_lease_after_its_heartbeat(seconds: float, admits: int) -> None:
    heartbeat.record(HERE, [], now=at(0))
    assert len(go(waiting(), now=at(seconds))) == admits


@pytest.mark.parametrize(("seconds", "admits"), [(39, 1), (41, 0)])
def test_a_queue_is_served_for_the_grace_after_its_last_worker_stopped(seconds: float, admits: int) -> None:
    heartbeat.record(HERE, [], now=at(0))
    heartbeat.mark_stopped(HERE.id, now=at(10))
    assert len(go(waiting(), now=at(seconds))) == admits


def test_a_worker_that_stopped_does_not_serve_by_the_heartbeats_that_follow() -> None:
    heartbeat.record(HERE, [], now=at(0))
    heartbeat.mark_stopped(HERE.id, now=at(10))
    heartbeat.record(replace(HERE, queues=[]), [], now=at(35))
    assert go(waiting(), now=at(41)) == []


def test_without_a_grace_workers_are_not_asked_for(settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": None}
    (call,) = send()
    assert states([call]) == [State.DISPATCHED]


def test_what_is_on_the_way_to_a_queue_without_workers_goes_back_unspent() -> None:
    key("api", concurrency=1)
    heartbeat.record(HERE, [], now=at(0))
    call = waiting("api")
    assert go(call, now=at(1)) == [call.id]
    assert engine.recover(now=at(59)) == 0
    assert engine.recover(now=at(61)) == 1
    assert (seen(call).state, seen(call).attempt, seen(call).errors) == (State.AVAILABLE, 0, [])
    assert Lane.objects.get(id=call.lane_id).is_held
    assert not Slot.objects.exists()


def test_what_runs_in_a_queue_without_workers_is_left_to_its_lease() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = started()
    engine.recover(now=at(59))
    assert states([call]) == [State.ACTIVE]


# The bound


def test_no_more_calls_are_on_their_way_than_the_setting_says(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 3}
    heartbeat.record(HERE, [])
    calls = send(5)
    assert states(calls) == [State.DISPATCHED] * 3 + [State.AVAILABLE] * 2
    CallQueue.objects.send_many([Call(task="noop", priority=9)] * 5)
    assert (dispatched(), engine.tick(), dispatched()) == (3, 0, 3)


def test_one_more_in_the_setting_does_not_let_fewer_calls_go(settings: Any) -> None:
    heartbeat.record(replace(HERE, queues=["a", "b"]), [])
    for queue, ahead in (("a", 64), ("b", 65)):
        settings.DISPATCHER = {**GATED, "dispatch_ahead": ahead}
        CallQueue.objects.send_many([Call(task="noop", queue=queue)] * 70)
        assert CallQueue.objects.filter(state=State.DISPATCHED, queue=queue).count() == 64


def test_a_queue_that_has_as_many_calls_on_their_way_as_a_pass_admits_is_not_due(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 100}
    heartbeat.record(HERE, [])
    CallQueue.objects.send_many([Call(task="noop")] * 80)
    assert 0 < dispatched() < 80
    assert schedule.ask_due_queues().rows() == []


def test_each_queue_has_a_bound_of_its_own(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 2}
    heartbeat.record(replace(HERE, queues=["a", "b"]), [])
    CallQueue.objects.send_many([Call(task="noop", queue=queue) for queue in ("a", "b") for _ in range(4)])
    on_way = CallQueue.objects.filter(state=State.DISPATCHED)
    assert sorted(on_way.values_list("queue", flat=True)) == ["a", "a", "b", "b"]


def test_what_workers_have_claimed_is_no_longer_on_its_way(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 2}
    heartbeat.record(HERE, [])
    calls = send(4)
    for call in map(seen, calls[:2]):
        claim.claim(call.id, ticket_of(call))
    assert engine.tick() == 2
    assert states(calls) == [State.ACTIVE] * 2 + [State.DISPATCHED] * 2


def test_a_backlog_behind_the_bound_drains_without_ticks(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 4}
    heartbeat.record(HERE, [])
    CallQueue.objects.send_many([Call(task="noop")] * 30)
    most = 0
    while call := CallQueue.objects.filter(state=State.DISPATCHED).order_by("position").first():
        most = max(most, dispatched())
        engine.execute(call.id, ticket_of(call), lambda: None)
    assert most == 4
    assert set(CallQueue.objects.values_list("state", flat=True)) == {State.COMPLETED}


def test_the_bound_keeps_the_order_of_priorities(settings: Any) -> None:
    settings.DISPATCHER = {**GATED, "dispatch_ahead": 2}
    heartbeat.record(HERE, [])
    first = send(3)
    (urgent,) = CallQueue.objects.send_many([Call(task="noop", priority=7)])
    call = seen(first[0])
    engine.execute(call.id, ticket_of(call), lambda: None)
    assert states([urgent, first[2]]) == [State.DISPATCHED, State.AVAILABLE]


# What workers say


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


def test_a_worker_that_goes_puts_back_what_it_has_not_started_and_keeps_what_runs() -> None:
    heartbeat.record(HERE, [])
    fetched, running = send(2)
    running = seen(running)
    claim.claim(running.id, ticket_of(running), worker=HERE.id)
    held = [(call.id, ticket_of(seen(call))) for call in (fetched, running)]
    assert workers.stop_accepting(HERE.id, held) == 1
    assert states([running]) == [State.ACTIVE]
    # Within the grace it is admitted again, for the worker that follows.
    assert (seen(fetched).state, seen(fetched).attempt) == (State.DISPATCHED, 0)
    assert seen(fetched).ticket != fetched.ticket
    assert Worker.objects.get().stopped_at is not None


def test_a_worker_that_has_ended_gives_up_what_it_had_to_kill() -> None:
    key("api", concurrency=1)
    heartbeat.record(HERE, [])
    running, behind = send(2, keys=["api"])
    running = seen(running)
    claim.claim(running.id, ticket_of(running), worker=HERE.id)
    assert workers.release_all(HERE.id) == 1
    ended = seen(running)
    assert (ended.state, ended.attempt, ended.crashes) == (State.RETRYABLE, 1, 0)
    assert ended.error["message"] == "its worker was shut down"
    assert states([behind]) == [State.DISPATCHED]
    assert workers.release_all(uuid4()) == 0


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


# Leases behind a gap


def test_leases_are_not_judged_just_after_an_outage(settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": None, "heartbeat": 15, "recover_every": 10}
    heartbeat.record(HERE, [])
    call = started()
    Slot.objects.update(lease_until=LONG_AGO)
    assert engine.recover() == 1
    assert states([call]) != [State.ACTIVE]
    call = started()
    Slot.objects.filter(call=call).update(lease_until=timezone.now() - timedelta(seconds=20))
    LeaseCheck.objects.update(checked_at=LeaseCheck.objects.get().checked_at - timedelta(seconds=40))
    assert engine.recover() == 0
    assert states([call]) == [State.ACTIVE]
    LeaseCheck.objects.update(since=LeaseCheck.objects.get().checked_at - timedelta(seconds=31))
    assert engine.recover() == 1
