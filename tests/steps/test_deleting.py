"""Deleting: calls that have ended go at once; one that has not is refused by an error that names the remedy."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext

from dispatcher import api
from dispatcher.errors import CallNotEnded
from dispatcher.models import CallQueue, Lane
from dispatcher.states import State
from tests.builders import admitted, at, ended, lane_of, seen, started, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler, pytest.mark.django]

OPEN: dict[State, Callable[[], CallQueue]] = {
    State.PENDING: lambda: changed(state=State.PENDING),
    State.SCHEDULED: lambda: waiting(scheduled_at=at(60)),
    State.AVAILABLE: waiting,
    State.DISPATCHED: admitted,
    State.ACTIVE: started,
    State.RETRYABLE: lambda: changed(state=State.RETRYABLE, scheduled_at=at(60)),
}


def changed(**fields: object) -> CallQueue:
    call = waiting()
    CallQueue.objects.filter(id=call.id).update(**fields)
    return seen(call)


@pytest.mark.parametrize("state", OPEN)
def test_a_call_that_has_not_ended_is_not_deleted(state: State) -> None:
    call, done = OPEN[state](), ended(queue="ended")
    for delete in (CallQueue.objects.all().delete, CallQueue.objects.filter(id=call.id).delete, call.delete):
        with pytest.raises(CallNotEnded, match=rf"call {call.id} is {state}.*api\.cancel") as refused:
            delete()
        assert (refused.value.call, refused.value.state) == (str(call.id), state)
    assert set(CallQueue.objects.values_list("id", flat=True)) == {call.id, done.id}
    assert call.pk is not None


def test_calls_that_have_ended_are_deleted_by_one_statement() -> None:
    calls = [ended() for _ in range(3)]
    kept = waiting()
    with CaptureQueriesContext(connection) as asked:
        assert CallQueue.objects.ended().delete() == (3, {"dispatcher.CallQueue": 3})
    # One looks whether one of them has not ended; nothing is read into memory.
    assert [query["sql"].split()[0] for query in asked.captured_queries] == ["SELECT", "DELETE"]
    assert list(CallQueue.objects.all()) == [kept]
    assert calls[0].delete() == (0, {"dispatcher.CallQueue": 0})


def test_a_cancelled_call_can_be_deleted() -> None:
    call = admitted()
    api.cancel([call.id])
    assert call.delete() == (1, {"dispatcher.CallQueue": 1})
    assert not CallQueue.objects.exists()


def test_a_call_that_is_retried_after_it_was_read_is_not_deleted() -> None:
    call = ended()
    api.retry([call.id])
    assert call.state == State.COMPLETED, "as it was read"
    with pytest.raises(CallNotEnded):
        call.delete()


def test_a_lane_that_has_calls_is_not_deleted() -> None:
    call = waiting()
    with pytest.raises(ProtectedError):
        lane_of(call).delete()
    assert Lane.objects.exists()
