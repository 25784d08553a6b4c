"""The step of a feed: what it records, what it starts, and what it leaves to others; on real connections."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from celery import current_app
from django.db import connection

from dispatcher import api, ending, engine, sql
from dispatcher.engine import dispenser, fed, feed
from dispatcher.engine.feed import Taker
from dispatcher.lifecycle import admit, heartbeat, wake
from dispatcher.lifecycle import feed as lifecycle_feed
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, Feed, Lane, Queue, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, committed, seen, states
from tests.steps.feeding import TAKER, ids, send, take
from tests.steps.sample_tasks import do

pytestmark = [committed, pytest.mark.usefixtures("direct")]


@contextmanager
def elsewhere() -> Iterator[psycopg.Connection[Any]]:
    """Open another connection, whose transaction ends with the block."""
    params = connection.get_connection_params()
    wanted = {name: params[name] for name in ("host", "port", "dbname", "user", "password") if params.get(name)}
    with psycopg.connect(**wanted) as other:
        yield other
        other.rollback()


# What a step starts


def test_a_step_starts_as_many_calls_as_there_is_room_for_in_order_of_sending() -> None:
    calls = send(5)
    first = take(2)
    assert ids(first) == [calls[0].id, calls[1].id]
    started = seen(calls[0])
    assert (started.state, started.attempt, started.started_at is not None) == (State.ACTIVE, 1, True)
    assert started.claim == first.starts[0].claimed.claim_id
    assert Slot.objects.filter(worker_id=HERE.id, started_at__isnull=False).count() == 2
    assert ids(take(9)) == [call.id for call in calls[2:]]


def test_a_step_records_what_ended_and_starts_what_that_lets_in() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    calls = send(3, keys=["api"])
    step = take(2)
    for call in calls:
        assert ids(step) == [call.id]
        step = take(2, *step.starts)
        assert step.recorded == [call.id]
    assert states(calls) == [State.COMPLETED] * 3
    assert seen(calls[0]).result == 1
    assert not Slot.objects.exists()


def test_a_step_holds_a_window() -> None:
    RateLimitKey.objects.declare("api", rate=(2, "PT1H"))
    send(4, keys=["api"])
    step = take(4)
    assert len(step.starts) == 2
    assert ids(take(4, *step.starts)) == []
    lane = Lane.objects.get()
    assert lane.parked_on is not None


def test_a_step_gives_the_starts_of_a_throttle_their_times_and_its_opening() -> None:
    key = RateLimitKey.objects.declare("api", throttle=(10, "PT1S"))
    send(9, keys=["api"])
    step = take(9)
    times = [start.claimed.start_at for start in step.starts]
    assert len(times) >= 2
    assert all(after - before >= timedelta(seconds=0.1) for before, after in pairwise(times))
    assert key.id in step.openings


def test_higher_priorities_come_first_and_queues_take_turns() -> None:
    Queue.objects.create(name="bulk", delivery="direct")
    low, bulk = send(priority=-1)[0], send(2, queue="bulk")
    high = send(priority=1)[0]
    both = Taker(worker=HERE.id, queues=["mail", "bulk"], tasks=["noop"])
    assert ids(take(taker=both)) == [high.id]
    assert ids(take(2, taker=both)) == [bulk[0].id, bulk[1].id]
    assert ids(take(taker=both)) == [low.id]


def test_lanes_take_turns_with_one_process() -> None:
    for tenant in "abc":
        RateLimitKey.objects.declare(tenant, concurrency=5)
    calls = {tenant: send(2, keys=[tenant]) for tenant in "abc"}
    started: list[UUID] = []
    step = take()
    while step.starts:
        started += ids(step)
        step = take(1, *step.starts)
    owner = {call.id: tenant for tenant, sent in calls.items() for call in sent}
    assert sorted(owner[call] for call in started[:3]) == ["a", "b", "c"]


def test_what_is_to_be_dropped_or_put_off_at_a_limit_is() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (first,) = send(keys=["api"])
    step = take(3)
    assert ids(step) == [first.id]
    dropped, put_off = send(keys=["api"], on_limit="drop")[0], send(keys=["api"], on_limit="reschedule")[0]
    take(3)
    assert states([dropped, put_off]) == [State.DISCARDED, State.SCHEDULED]


def test_a_call_of_a_task_that_the_worker_does_not_know_is_put_off_without_an_attempt() -> None:
    (call,) = send()
    assert take(taker=Taker(worker=HERE.id, queues=["mail"], tasks=[])).starts == []
    assert (seen(call).state, seen(call).attempt) == (State.SCHEDULED, 0)
    assert not Slot.objects.exists()


def test_a_call_that_was_revoked_while_an_attempt_ran_is_not_started_again() -> None:
    (call,) = send()
    CallQueue.objects.filter(id=call.id).update(is_revoked=True)
    assert take().starts == []
    assert seen(call).state == State.CANCELLED


def test_a_paused_key_starts_nothing() -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    api.pause("api")
    send(keys=["api"])
    assert take(5).starts == []
    api.resume("api")
    assert len(take(5).starts) == 1


# How attempts end


def test_a_failed_attempt_is_tried_again_and_its_error_is_kept() -> None:
    (call,) = send()
    (start,) = take().starts
    failed = ending.failed(ValueError("no"), attempt=1, policy=None)
    ended = start.ended(failed)
    feed.step(TAKER, [ended], room=1)
    row = seen(call)
    assert row.state == State.RETRYABLE
    assert row.error["type"] == "ValueError"
    assert (row.error_count, len(row.errors), row.crashes) == (1, 1, 0)


def test_an_end_with_another_claim_or_ticket_changes_nothing() -> None:
    (call,) = send()
    (start,) = take().starts
    wrong = [
        Ended(call_id=call.id, ticket=uuid4(), claim_id=start.claimed.claim_id, ending=ending.completed(1)),
        Ended(call_id=call.id, ticket=start.call.ticket, claim_id=uuid4(), ending=ending.completed(1)),
    ]
    for ended in wrong:
        assert feed.step(TAKER, [ended], room=0).recorded == []
    assert seen(call).state == State.ACTIVE


def test_an_end_that_is_recorded_again_changes_nothing() -> None:
    send(2)
    (start,) = take().starts
    assert take(0, start).recorded == [start.call.id]
    assert take(0, start).recorded == []


def test_calls_of_a_step_whose_answer_was_lost_are_given_back_without_an_attempt() -> None:
    calls = send(2)
    kept, lost = take(2).starts
    assert fed.give_back_unknown(HERE.id, {kept.claimed.claim_id}) == 1
    assert states(calls) == [State.ACTIVE, State.AVAILABLE]
    assert seen(calls[1]).attempt == 0
    assert ids(take(2)) == [lost.call.id]


# What a step leaves to others


def test_room_that_a_lane_of_another_delivery_waits_for_first_is_handed_over() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    send(keys=["api"])
    step = take(1)
    (other,) = send(queue="celery", keys=["api"])
    assert seen(other).state == State.AVAILABLE
    take(1, *step.starts)
    assert seen(other).state == State.DISPATCHED


def test_a_worker_without_room_leaves_the_room_that_it_gives_back_to_others() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (first, second) = send(2, keys=["api"])
    step = take(2)
    assert ids(step) == [first.id]
    take(0, *step.starts)
    another = Taker(worker=uuid4(), queues=["mail"], tasks=["noop"])
    assert ids(take(1, taker=another)) == [second.id]


def test_room_that_the_first_lanes_behind_a_key_can_not_use_is_found_by_the_next_steps() -> None:
    shared = RateLimitKey.objects.declare("shared", concurrency=1)
    RateLimitKey.objects.declare("full", concurrency=1)
    send(keys=["full"])
    send(keys=["shared"])
    _, holder = take(2).starts
    for priority in range(1, 6):
        send(keys=["shared", "full"], priority=priority)
    (last,) = send(keys=["shared"], priority=-1)
    Lane.objects.filter(is_held=True).update(is_held=False, parked_on=shared)
    steps = [take(1, holder)]
    while steps[-1].has_moved:
        steps.append(take(keys=steps[-1].open_keys))
    assert [call for step in steps for call in ids(step)] == [last.id]


def test_a_step_reports_whether_it_leaves_calls_to_others() -> None:
    send(2)
    assert take(1).has_held
    take(2)
    assert not take(1).has_held


@pytest.mark.parametrize(("room", "is_held"), [(2, True), (3, False)])
def test_a_lane_whose_last_call_starts_sleeps_while_the_worker_has_room(*, room: int, is_held: bool) -> None:
    send(2)
    assert len(take(room).starts) == 2
    assert Lane.objects.get().is_held is is_held


def test_a_call_that_comes_while_its_lane_goes_to_sleep_starts_in_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send()
    look = admit.look_again

    def send_and_look(**options: Any) -> admit.Recheck:
        # Its sender looked before the step's commit: the lane was held.
        send()
        Lane.objects.update(is_held=False)
        return look(**options)

    monkeypatch.setattr(admit, "look_again", send_and_look)
    step = take(2)
    assert (len(step.starts), step.refilled) == (1, {Lane.objects.get().id})
    monkeypatch.undo()
    assert len(take().starts) == 1


def test_calls_begin_before_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    Queue.objects.create(name="post", delivery="direct")
    RateLimitKey.objects.declare("api", concurrency=1)
    send(keys=["api"])
    step = take()
    send(queue="post", keys=["api"])
    take(taker=replace(TAKER, queues=["post"]))
    send()
    done_so_far: list[str] = []
    dispense = dispenser.dispense_briefly
    monkeypatch.setattr(dispenser, "dispense_briefly", lambda **where: (done_so_far.append("serve"), dispense(**where)))
    take(1, *step.starts, taker=replace(TAKER, begin=lambda _: done_so_far.append("begin")))
    assert done_so_far == ["begin", "serve"]


def test_a_key_that_a_transaction_keeps_locked_costs_others_nothing() -> None:
    RateLimitKey.objects.declare("locked", concurrency=5)
    send(keys=["locked"], priority=5)
    (free,) = send()
    with elsewhere() as other:
        other.execute("SELECT id FROM dispatcher_ratelimitkey WHERE name = 'locked' FOR UPDATE")
        step = take(2)
        assert ids(step) == [], "the higher priority goes first, while its key may be locked for a moment only"
        assert ids(take(2, avoid=step.busy, stuck=step.busy)) == [free.id]


def test_lanes_that_another_worker_has_locked_are_left_to_it() -> None:
    RateLimitKey.objects.declare("a", concurrency=5)
    calls = [*send(), *send(keys=["a"])]
    with elsewhere() as other:
        other.execute("SELECT id FROM dispatcher_lane WHERE id = %s FOR UPDATE", [seen(calls[0]).lane_id])
        assert ids(take(2)) == [calls[1].id]


# Waking


def listening(worker: UUID) -> psycopg.Connection[Any]:
    params = connection.get_connection_params()
    wanted = {name: params[name] for name in ("host", "port", "dbname", "user", "password") if params.get(name)}
    other = psycopg.connect(**wanted, autocommit=True)
    other.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(wake.channel(worker))))
    return other


def notified(other: psycopg.Connection[Any]) -> int:
    return sum(1 for _ in other.notifies(timeout=0.05))


@pytest.mark.session
def test_a_send_wakes_one_idle_worker_and_not_all() -> None:
    workers = [heartbeat.WorkerInfo(**{**vars(HERE), "id": uuid4(), "queues": ["mail"]}) for _ in range(3)]
    connections = []
    for worker in workers:
        heartbeat.record(worker, [])
        wake.mark_idle(worker.id, ["mail"])
        connections.append(listening(worker.id))
    send()
    assert sum(map(notified, connections)) == 1
    assert Feed.objects.filter(idle_at__isnull=True).count() == 1
    send()
    assert sum(map(notified, connections)) == 0, "the lane is held already: who was woken looks at all of it"
    for other in connections:
        other.close()


@pytest.mark.session
def test_a_send_wakes_no_worker_that_is_silent_or_busy() -> None:
    heartbeat.record(HERE, [])
    wake.mark_idle(HERE.id, ["mail"])
    with listening(HERE.id) as other:
        wake.mark_busy(HERE.id)
        send()
        assert notified(other) == 0
        wake.mark_idle(HERE.id, ["mail"])
        with connection.cursor() as cursor:
            cursor.execute("UPDATE dispatcher_worker SET seen_at = now() - interval '1 hour'")
        assert wake.notify(["mail"]) == []


@pytest.mark.session
def test_a_rolled_back_send_wakes_no_worker() -> None:
    heartbeat.record(HERE, [])
    wake.mark_idle(HERE.id, ["mail"])
    with listening(HERE.id) as other:
        with pytest.raises(RuntimeError), sql.atomic():  # noqa: PT012 -- the transaction ends with the error
            send()
            raise RuntimeError
        assert notified(other) == 0


def test_a_worker_that_becomes_idle_sees_what_was_sent_before() -> None:
    assert wake.mark_idle(HERE.id, ["mail"]) is False
    Feed.objects.all().delete()
    key = RateLimitKey.objects.declare("exports", concurrency=5, per_worker=1)
    send(keys=["exports"])
    assert wake.mark_idle(HERE.id, ["mail"], [key.id]) is False
    assert wake.mark_idle(HERE.id, ["mail"]) is True
    assert wake.mark_idle(HERE.id, ["post"]) is False


def test_a_tick_wakes_an_idle_worker_that_no_sender_has_woken() -> None:
    heartbeat.record(HERE, [])
    send()
    wake.mark_idle(HERE.id, ["mail"])
    engine.tick()
    assert Feed.objects.get().idle_at is None


# Where tasks run in the sender's process


def test_a_call_of_a_direct_queue_runs_at_once_where_tasks_are_eager(nothing_ran: None) -> None:
    current_app.conf.task_always_eager = True
    try:
        (call,) = CallQueue.objects.send_many([Call(task=do, queue="mail")])
        lone = CallQueue.objects.send(do, queue="mail")
    finally:
        current_app.conf.task_always_eager = False
    assert states([call, lone]) == [State.COMPLETED, State.COMPLETED]


@pytest.mark.parametrize("queue", ["mail", "post"])
def test_a_lane_that_another_worker_parked_before_the_commit_gets_the_room(
    queue: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"pipeline": False}
    Queue.objects.create(name="post", delivery="direct")
    api_key = RateLimitKey.objects.declare("api", concurrency=1)
    RateLimitKey.objects.declare("tenant")
    send(keys=["api"])
    step = take()
    (call,) = send(queue=queue, keys=["api", "tenant"])
    lane = Lane.objects.filter(id=seen(call).lane_id)
    lane.update(is_held=False)
    look = lifecycle_feed.find_opened

    def park_and_look(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(lifecycle_feed, "find_opened", look)
        lane.update(parked_on=api_key)
        return look(*args, **options)

    monkeypatch.setattr(lifecycle_feed, "find_opened", park_and_look)
    ended = take(1, *step.starts)
    assert ids(ended) == []
    assert ended.open_keys == ({api_key.id} if queue == "mail" else set())
    if queue == "mail":
        assert ids(take(keys=ended.open_keys)) == [call.id]
    # The lane of another queue is held by now, for the workers of that one.
    else:
        assert ids(take(taker=replace(TAKER, queues=["post"]))) == [call.id]
