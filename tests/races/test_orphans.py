"""Slots of calls that are gone: freed once, by any process, and without waiting for a transaction of a user's."""

from django.utils import timezone

from dispatcher import api, engine
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import erase
from tests.races.lockstep import actors, concurrent, holding
from tests.races.traffic import in_flight

pytestmark = concurrent


def test_recovery_does_not_wait_for_a_transaction_that_has_locked_the_call_of_an_orphan() -> None:
    locked, gone = in_flight(count=2)
    CallQueue.objects.filter(id=locked.id).update(state=State.COMPLETED, ticket=None, finished_at=timezone.now())
    erase(gone)
    with holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [locked.id]), actors(1) as (recovery,):
        recovery.do(engine.recover)
        assert list(Slot.objects.values_list("call", flat=True)) == [locked.id]
    engine.recover()
    assert not Slot.objects.exists()


def test_a_call_that_is_retried_while_it_is_deleted_stays() -> None:
    (call,) = in_flight()
    api.cancel([call.id])
    with actors(2) as (person, other):
        person.open()
        person.do(api.retry, [call.id])
        deleting = other.begin(CallQueue.objects.filter(id=call.id).delete)
        other.wait_blocked(by=person)
        person.commit()
        assert deleting.result() == (0, {})
    assert CallQueue.objects.filter(id=call.id).exists()
