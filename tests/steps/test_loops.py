"""The trips of a worker's processes: what they leave when nothing starts, and who gets what they start."""

import pytest

from dispatcher.models import CallQueue, Feed
from dispatcher.states import State
from tests.builders import HERE, committed, key, seen, states
from tests.races.lockstep import eventually
from tests.steps.feeding import send
from tests.steps.loops import process

pytestmark = [committed, pytest.mark.session, pytest.mark.usefixtures("direct")]


def is_idle() -> bool:
    return Feed.objects.filter(worker_id=HERE.id, idle_at__isnull=False).exists()


def test_a_process_that_nothing_starts_for_is_marked_as_idle_and_woken_by_a_send() -> None:
    with process() as worker:
        eventually(is_idle)
        call = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == call.id
        assert not is_idle()


def test_a_process_whose_trip_has_parked_one_lane_after_the_other_is_marked_as_idle() -> None:
    key("api", concurrency=0)
    calls = [CallQueue.objects.send("noop", queue="mail", keys=["api"], priority=n) for n in range(3)]
    with process() as worker:
        eventually(is_idle)
        assert states(calls) == [State.AVAILABLE] * 3
        call = CallQueue.objects.send("noop", queue="mail")
        assert worker.begun() == call.id


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


def test_a_process_that_leaves_records_its_ends_first_and_deletes_its_mark() -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    with process() as worker:
        assert worker.begun() == call.id
    assert seen(call).state == State.COMPLETED
    assert not Feed.objects.exists()
