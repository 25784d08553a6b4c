"""The trips of a worker's processes: what they leave when nothing starts, and who gets what they start."""

import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from socket import SHUT_RDWR, socket
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from dispatcher import api, ending, sql
from dispatcher.ending import Ending
from dispatcher.engine import direct
from dispatcher.lifecycle import claim, wake
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, LaneSite, Start
from dispatcher.models import Process as Mark
from dispatcher.request import Changes
from dispatcher.states import State
from dispatcher.worker.call import End
from tests import db_admin
from tests.builders import HERE, committed, key, seen, states
from tests.faults import dying, locked
from tests.races.lockstep import DEADLINE, actors, eventually, gated, holding
from tests.steps.feeding import send
from tests.steps.loops import Process, process

pytestmark = [committed, pytest.mark.session, pytest.mark.usefixtures("direct")]


def is_idle() -> bool:
    return Mark.objects.filter(worker_id=HERE.id, idle_at__isnull=False).exists()


def test_a_process_that_nothing_starts_for_is_marked_as_idle_and_woken_by_a_send() -> None:
    with process() as worker:
        eventually(is_idle)
        call = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == call.id
        assert not is_idle()


@pytest.mark.parametrize("looks", [0, 1])
def test_a_process_looks_twice_after_its_mark_for_what_woke_none(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender had looked for marks before; the wake-ups of a trip come before its commit."""
    look_no_more(monkeypatch)
    sent: list[CallQueue] = []
    left = [looks]

    def step_then_send(*args: Any, **marks: Any) -> Any:
        taken = step(*args, **marks)
        if marks["may_rest"] and (marks["is_marked"] or is_idle()) and left:
            if left[0]:
                left[0] -= 1
            else:
                left.clear()
                sent.append(sender.do(send_and_die))
        return taken

    step = direct.step
    call = CallQueue.objects.send("noop", queue="mail")
    with actors(1) as (sender,), process() as worker:
        assert worker.begun() == call.id
        monkeypatch.setattr(direct, "step", step_then_send)
        worker.end()
        assert worker.begun() == sent[0].id


def test_a_process_that_was_woken_as_it_started_a_call_wakes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender may have meant a call that came when the trip had looked."""
    look_no_more(monkeypatch)
    looks = Counter[UUID]()
    sent: list[CallQueue] = []

    def step_then_wake(taker: Taker, *args: Any, **marks: Any) -> Any:
        taken = step(taker, *args, **marks)
        assert taker.process is not None
        looks[taker.process] += not taken.starts
        if taken.starts and not sent:
            sent.append(sender.do(send_and_die))
            with db_admin.connect() as admin:
                admin.execute("SELECT pg_notify(%s, '')", [wake.channel(taker.process)])
        return taken

    step = direct.step
    monkeypatch.setattr(direct, "step", step_then_wake)
    with actors(1) as (sender,), process(), process():
        eventually(lambda: sorted(looks.values()) == [3, 3])
        call = CallQueue.objects.send("noop", queue="mail")
        eventually(lambda: sent and states([call, *sent]) == [State.ACTIVE] * 2)


def look_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes look again only soon after their mark, and when they are woken."""
    for module in ("session", "trips"):
        monkeypatch.setattr(f"dispatcher.worker.{module}.LOOK_S", DEADLINE * 2)


def send_and_die() -> CallQueue:
    with dying():
        return CallQueue.objects.send("noop", queue="mail")


def test_a_process_whose_trip_has_parked_one_lane_after_the_other_is_marked_as_idle() -> None:
    key("api", concurrency=0)
    calls = [CallQueue.objects.send("noop", queue="mail", keys=["api"], priority=n) for n in range(3)]
    with process() as worker:
        eventually(is_idle)
        assert states(calls) == [State.AVAILABLE] * 3
        call = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == call.id


def test_a_trip_that_a_lock_stops_keeps_its_connection_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with process() as worker:
        eventually(is_idle)
        with holding("LOCK TABLE dispatcher_lanesite"):
            eventually(lambda: "waits for another transaction" in caplog.text)
        assert worker.trips.session.is_open
        call = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == call.id
    assert "without its database" not in caplog.text
    assert not worker.places[0].take_lost(), "nothing may have started that is not known"


def test_loops_of_one_process_share_its_connection_and_each_gets_what_it_has_room_for() -> None:
    with process(loops=3) as worker:
        eventually(is_idle)
        calls = [CallQueue.objects.send("noop", queue="mail") for _ in range(4)]
        assert {worker.begun() for _ in range(3)} == {call.id for call in calls[:3]}
        assert [len(place.held) for place in worker.places] == [1, 1, 1]
        worker.end("ended")
        assert worker.begun() == calls[3].id
        assert [seen(call).result for call in calls].count("ended") == 1


def test_loops_of_one_process_that_end_at_once_take_all_calls() -> None:
    calls = send(300)
    with process(loops=6, is_quick=True):
        eventually(lambda: states(calls) == [State.COMPLETED] * 300)
    assert {seen(call).attempt for call in calls} == {1}


def test_ends_in_a_stream_do_not_wait_longer_for_others_because_a_lock_has_held_a_trip_up() -> None:
    with process(room=16) as worker:
        first = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == first.id
        with gated("dispatcher_slot"):
            call = CallQueue.objects.send("noop", queue="mail")
            worker.end()
            held_up_until = monotonic() + 2
            eventually(lambda: monotonic() > held_up_until)
        assert worker.begun() == call.id
        worker.end()
        eventually(lambda: seen(call).state == State.COMPLETED, within=2)


def test_a_process_that_leaves_records_its_ends_first_and_deletes_its_mark() -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    with process() as worker:
        assert worker.begun() == call.id
    assert seen(call).state == State.COMPLETED
    assert not Mark.objects.exists()


def test_a_call_that_could_not_begin_in_time_goes_back_and_spends_no_attempt() -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    with process() as worker:
        assert worker.begun() == call.id
        worker.end(by=Refused.MISSED)
        assert worker.begun() == call.id
        worker.end("begun")
        eventually(lambda: seen(call).state == State.COMPLETED)
    assert (seen(call).result, seen(call).attempt) == ("begun", 1)


def test_a_trip_that_fills_a_key_parks_its_lane_and_leaves_nothing_that_others_would_look_at_in_vain() -> None:
    full = key("api", concurrency=1)
    for _ in range(2):
        CallQueue.objects.send("noop", queue="mail", keys=["api"])
    taken = take(Taker(worker=HERE.id, queues=["mail"]), room=1)
    assert (len(taken.starts), taken.has_more, taken.is_full) == (1, False, True)
    assert LaneSite.objects.get().place == full.id
    assert (
        len(take(Taker(worker=HERE.id, queues=["mail"]), [taken.starts[0].ended(ending.completed(1))], room=1).starts)
        == 1
    )


@pytest.mark.parametrize(("concurrency", "is_full"), [(1, True), (2, False)])
def test_what_fills_a_key_is_ended_at_once_though_no_other_call_waits_for_it_yet(
    concurrency: int, *, is_full: bool
) -> None:
    key("api", concurrency=concurrency)
    CallQueue.objects.send("noop", queue="mail", keys=["api"])
    taken = take(Taker(worker=HERE.id, queues=["mail"]), room=16)
    assert (len(taken.starts), taken.is_full) == (1, is_full)
    taken = take(Taker(worker=HERE.id, queues=["mail"]), [taken.starts[0].ended(ending.completed(1))], room=16)
    assert not taken.is_full, "its room is free"


@pytest.mark.parametrize(("concurrency", "ahead"), [(16, False), (17, True)])
def test_calls_are_taken_ahead_only_where_that_leaves_the_room_of_keys_to_others(
    concurrency: int, *, ahead: bool
) -> None:
    key("api", concurrency=concurrency)
    for _ in range(3):
        CallQueue.objects.send("noop", queue="mail", keys=["api"])
    with process() as worker:
        worker.begun()
        assert worker.trips.takes_ahead is ahead
        worker.end()
        worker.begun()
        worker.end()
        worker.begun()
        assert not worker.trips.takes_ahead, "no other waits"


@pytest.mark.parametrize("limit", ["rate", "throttle"])
def test_the_first_start_of_a_connection_has_more_time_to_come_which_its_limit_allows_for(limit: str) -> None:
    key("api", **{limit: (100, 1)})
    with process() as worker:
        for cold in (timedelta(milliseconds=150), timedelta(0)):
            eventually(is_idle)
            call = CallQueue.objects.send("noop", queue="mail", keys=["api"])
            run = worker.next_run()
            counted_at, taken_at = Start.objects.latest("total").at, seen(call).dispatched_at
            assert taken_at is not None
            assert counted_at - taken_at >= cold
            late_by = timedelta(milliseconds=25) + cold if limit == "rate" else timedelta(milliseconds=2)
            assert run.claimed.lateness == late_by
            worker.end()


def test_a_start_under_a_throttle_that_may_be_late_moves_the_next_one_by_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key("api", throttle=(20, 1))
    for _ in range(3):
        CallQueue.objects.send("noop", queue="mail", keys=["api"])
    monkeypatch.setattr(claim, "slack", lambda *, is_cold=False: timedelta(milliseconds=30))
    starts = []
    with process() as worker:
        for _ in range(3):
            starts.append(worker.next_run().claimed)
            worker.end()
    for before, after in pairwise(starts):
        latest = before.start_at + before.lateness - timedelta(milliseconds=2)
        assert after.start_at >= latest + timedelta(milliseconds=50)
        assert before.lateness == timedelta(milliseconds=32)


def test_a_call_that_its_provider_puts_off_closes_its_key_and_waits() -> None:
    stopped = key("api")
    calls = [CallQueue.objects.send("noop", queue="mail", keys=["api"]) for _ in range(2)]
    with process() as worker:
        assert worker.begun() == calls[0].id
        worker.end(by=ending.stopped(timedelta(hours=1), None))
        eventually(is_idle)
    stopped.refresh_from_db()
    assert stopped.blocked_until is not None
    assert states(calls) == [State.AVAILABLE] * 2
    assert seen(calls[0]).attempt == 0


def test_a_call_that_asks_for_another_queue_is_made_again_there() -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    failed = ending.failed(ValueError("again"), attempt=1, policy=None, wait=timedelta(0))
    with process() as worker:
        assert worker.begun() == call.id
        worker.end(by=replace(failed, changes=Changes(queue="post")))
        eventually(lambda: seen(call).queue == "post")
    assert (seen(call).attempt, seen(call).state) in [(1, State.RETRYABLE), (1, State.AVAILABLE), (1, State.DISPATCHED)]


def test_an_end_that_the_database_refuses_fails_its_own_call_and_no_other() -> None:
    calls = send(2, retry={"max_attempts": 1})
    refused = Ending(state=State.COMPLETED, result='"\\u0000"')
    with process(loops=2) as worker:
        assert {worker.begun(), worker.begun()} == {call.id for call in calls}
        worker.end(by=refused)
        worker.end("stored")
        eventually(lambda: sorted(states(calls)) == [State.COMPLETED, State.DISCARDED])
    assert {seen(call).result for call in calls} == {None, "stored"}


def test_an_end_whose_call_a_user_has_locked_is_recorded_later_and_the_process_goes_on() -> None:
    calls = send(3)
    with process() as worker:
        first = worker.begun()
        with locked("call", next(call for call in calls if call.id == first)):
            worker.end("first")
            for _ in range(2):
                worker.begun()
                worker.end("next")
            eventually(lambda: states(calls[1:]) == [State.COMPLETED] * 2)
            assert states(calls[:1]) == [State.ACTIVE]
        eventually(lambda: states(calls) == [State.COMPLETED] * 3)
    assert seen(calls[0]).result == "first"


AGAIN = ending.failed(ValueError("again"), attempt=1, policy=None, wait=timedelta(hours=1))


@pytest.mark.parametrize("row", ["call", "slot"])
@pytest.mark.parametrize(
    ("end", "state", "attempt"),
    [
        (Refused.MISSED, State.AVAILABLE, 0),
        (ending.stopped(timedelta(hours=1), None), State.AVAILABLE, 0),
        (replace(AGAIN, changes=Changes(args="[1]")), State.RETRYABLE, 1),
    ],
    ids=["missed", "put off", "changed"],
)
def test_a_process_goes_on_while_a_user_has_locked_what_a_call_needs_to_wait_again(
    row: str, end: End, state: State, attempt: int
) -> None:
    key("api", concurrency=1)
    call = CallQueue.objects.send("noop", queue="mail", keys=["api"])
    with process() as worker:
        assert worker.begun() == call.id
        with locked(row, call):
            worker.end(by=end)
            others = send(5)
            for other in others:
                assert worker.begun() == other.id
                assert call.id in [held for held, _ in worker.places[0].held], "its lease is renewed"
                worker.end()
            assert seen(call).state == State.ACTIVE
            api.block("api", 60)  # or it starts again before we look
        eventually(lambda: seen(call).state == state)
    assert seen(call).attempt == attempt


@pytest.mark.parametrize("is_network", [False, True], ids=["by the server", "by the network"])
def test_a_process_whose_connection_is_cut_goes_on_with_another_one(*, is_network: bool) -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    with process() as worker:
        assert worker.begun() == call.id
        (break_off if is_network else cut)(worker)
        worker.end("ended")
        eventually(lambda: seen(call).result == "ended")
        eventually(is_idle)
        another = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == another.id


def break_off(worker: Process) -> None:
    """Break the connection of the process: the server says nothing."""
    with worker.trips.session.used(), socket(fileno=os.dup(sql.connection().connection.fileno())) as ours:
        ours.shutdown(SHUT_RDWR)


def cut(_: Process) -> None:
    """End the session of the process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert cursor.rowcount == 1
