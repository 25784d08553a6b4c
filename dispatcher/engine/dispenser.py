"""Dispense: dispatch the calls of broker queues that may go, publish them, and look again until nothing is left."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from time import sleep

from dispatcher import sql
from dispatcher.conf import conf, is_eager
from dispatcher.lifecycle import oversized, publish, take, wake
from dispatcher.lifecycle.take import Taken, Taker
from dispatcher.states import State

PUBLISH = 10
"""The most calls of broker queues that one trip of a worker dispatches beside its own."""
BRIEF = 50
"""The most calls that one trip dispatches whose process has something else to do: a sender's, or a person's."""
_BRIEF_TRIPS = 5
_SETTLING = 0.1
"""As what part of a trip one counts that dispatched nothing, but put calls aside or ended them."""
_FRUITLESS = 3
"""After how many trips in a row that changed nothing the rest is left to the next that comes along."""
_WAITS = 2
"""How often what is locked is waited for, 20 ms each time, before it is left to the next tick."""

_DISPENSER = Taker(becomes=State.DISPATCHED)


@publish.eager_errors_last()
def dispense(
    *,
    queues: Collection[str] | None = None,
    keys: Collection[int] = (),
    most: int | None = None,
    trips: int | None = None,
) -> int:
    """Dispatch what may go and publish it, trip by trip; return how many calls were dispatched.

    Each trip reads the notes that are due. queues: where to look for lanes that are ready; all that the broker
    delivers, by default. keys: keys to be looked at. most: calls of one trip. trips: how many at the most.
    """
    found = ready_queues() if queues is None else [*queues]
    dispatched, fruitless, made, waits = 0, 0, 0.0, 0
    while trips is None or made < trips:
        batch = most or conf().batch
        taken = take.take(replace(_DISPENSER, queues=found), room=batch, publish=batch, keys=keys)
        publish.publish(taken.dispatched)
        dispatched, keys = dispatched + len(taken.dispatched), ()
        # One that has only put calls aside, or ended them, says nothing about those behind.
        made += _SETTLING if taken.fates and not taken.dispatched else 1
        fruitless = 0 if taken.dispatched or taken.fates else fruitless + 1
        # What another transaction has locked is looked at again: who has it may have missed the note about it.
        wait_s = None if taken.again_at is None else max(0.0, (taken.again_at - taken.at).total_seconds())
        # Trips name those of the broker.
        found = [*(ready_queues() if is_eager() else taken.publish)]
        is_over = not found and (wait_s is None or (wait_s > 0 and waits == _WAITS))
        if is_over or fruitless == _FRUITLESS:
            break
        if wait_s and not found:
            waits += 1
            sleep(wait_s)
    return dispatched


def dispense_briefly(*, queues: Collection[str] = ()) -> int:
    """Dispense in a few trips of a few calls, as who has something else to do; the rest is left to the next tick.

    Where tasks run in the sender's own process, nothing is left: no dispenser is needed there.
    """
    if is_eager():
        return dispense()
    return dispense(queues=queues, most=BRIEF, trips=_BRIEF_TRIPS)


def serve(taken: Taken, *, own: Collection[str] = (), comes_again: bool = True) -> None:
    """Publish what a trip has dispatched, and dispense the queues that it has found ready.

    Of a queue of which it has dispatched calls, the ends of these let the others go. comes_again: whether the taker
    makes its next trip at `again_at`; otherwise a publisher of its own queues does, or where none lives, this process.
    """
    publish.publish(taken.dispatched)
    queues = {*taken.publish}.difference(call.queue for call in taken.dispatched)
    is_left = taken.again_at is not None and not (comes_again or (taken.dispatched and taken.has_more))
    if is_left and own:
        is_left = any(woken.is_published for woken in wake.ask(queues=own).rows())
    if is_left and taken.again_at is not None:
        # What was locked is noted for then.
        sleep(max(0.0, (taken.again_at - taken.at).total_seconds()))
    if queues or is_left:
        dispense_briefly(queues=queues.union(own if is_left else ()))


def serve_limited() -> None:
    """Serve keys whose limits have changed, and first let go on what waited alone and fits now."""
    oversized.release()
    dispense_briefly()


def ready_queues() -> Sequence[str]:
    """Return the queues with ready lanes whose calls the broker delivers; where tasks are eager, direct ones, too."""
    return sql.fetch("ready_queues", str, {"deliveries": ["broker", "direct"] if is_eager() else ["broker"]})
