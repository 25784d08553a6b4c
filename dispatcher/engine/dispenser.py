"""Dispense: dispatch the calls of broker queues that may go, publish them, and look again until nothing is left."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dispatcher import sql
from dispatcher.conf import conf, is_eager
from dispatcher.lifecycle import oversized, publish, take
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
    dispatched, fruitless, made = 0, 0, 0.0
    while trips is None or made < trips:
        batch = most or conf().batch
        taken = take.take(replace(_DISPENSER, queues=found), room=batch, publish=batch, keys=keys)
        publish.publish(taken.dispatched)
        dispatched, keys = dispatched + len(taken.dispatched), ()
        # One that has only put calls aside, or ended them, says nothing about those behind.
        made += _SETTLING if taken.fates and not taken.dispatched else 1
        fruitless = 0 if taken.dispatched or taken.fates else fruitless + 1
        is_over = not taken.publish and not (taken.again_at is not None and taken.again_at <= taken.at)
        if is_over or fruitless == _FRUITLESS:
            break
        found = [*taken.publish]
    return dispatched


def dispense_briefly(*, queues: Collection[str] = (), keys: Collection[int] = ()) -> int:
    """Dispense in a few trips of a few calls, as who has something else to do; the rest is left to the next tick.

    Where tasks run in the sender's own process, nothing is left: no dispenser is needed there.
    """
    if is_eager():
        return dispense(keys=keys)
    return dispense(queues=queues, keys=keys, most=BRIEF, trips=_BRIEF_TRIPS)


def serve(taken: Taken) -> None:
    """Publish what a trip has dispatched, and dispense the queues that it has found ready."""
    publish.publish(taken.dispatched)
    if taken.publish:
        dispense_briefly(queues=taken.publish)


def serve_limited(keys: Collection[int]) -> None:
    """Serve keys whose limits have changed, and first let go on what waited alone and fits now."""
    oversized.release(keys)
    dispense_briefly()


def ready_queues() -> Sequence[str]:
    """Return the queues with ready lanes whose calls the broker delivers; where tasks are eager, direct ones, too."""
    return sql.fetch("ready_queues", str, {"deliveries": ["broker", "direct"] if is_eager() else ["broker"]})
