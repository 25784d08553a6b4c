"""The systems that are measured, one after the other, and the groups of tasks on each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import transaction

from bench.figures import ensure
from bench.scale import calls, dispensing, http_api, pages
from bench.scale.calls import LATER, MANY
from bench.scale.compare import Operation, Order, Task, Tick, after
from bench.scale.systems import System
from bench.scale.tasks import nothing
from dispatcher import api, engine
from dispatcher.conf import conf
from dispatcher.lifecycle import schedule
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import State

Group = Callable[[], Iterator[Task]]
AWAKE = 100
"""Lanes that a trip takes."""
LANES_SENT_TO = 3_000
ROOM = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One pair of systems."""

    adds: tuple[str, ...] = ()
    """The files of statements that add to the yardstick, and to the small system, what it has more of."""
    groups: tuple[Group, ...]


def lanes() -> Iterator[Task]:
    """Yield what many lanes in one queue must not slow down, asleep at first and ready then."""
    yield Operation("lanes: send alone", prepare=_far, do=_send_far)
    yield Operation(f"lanes: send_many({MANY}) to {AWAKE} lanes", prepare=_bulk_far, do=CallQueue.objects.send_many)
    yield Operation(
        f"lanes: send_many to {LANES_SENT_TO:,} lanes and the trips after it",
        prepare=_wide_bulk_far,
        do=CallQueue.objects.send_many,
        share=lambda system: min(LANES_SENT_TO, system.size.lanes) / 100,
        unit="ms/100",
    )
    yield Operation("lanes: idle tick", do=dispensing.tick)
    yield Operation("lanes: busy tick", prepare=after("work"), do=dispensing.tick)


def awake() -> Iterator[Task]:
    """Yield what many lanes that are ready must not slow down."""
    # A call waits in as many lanes as a trip takes, and all others are as they were.
    wake = after("wake_again")
    yield Operation(f"awake: trip over {AWAKE} lanes", prepare=wake, do=_trip)
    yield Operation("awake: send alone", prepare=_far, do=partial(_send_far, queue="awake"))
    yield Tick("awake: longest tick", do=_whole_tick, prepare=wake)


def due_at_once() -> Iterator[Task]:
    """Yield what many calls that are due at one instant must not slow down."""
    yield Operation("due: waking a batch of those of one instant", do=lambda _: _in_vain(schedule.wake_due))
    yield Operation("due: send alone", prepare=calls.idle, do=calls.send)
    yield Tick("due: longest tick", do=_whole_tick)


def expiring() -> Iterator[Task]:
    """Yield what many calls that expire at one instant must not slow down."""
    discard = schedule.discard_expired
    yield Operation("expiring: discarding a batch of those of one instant", do=lambda _: _in_vain(discard))
    yield Tick("expiring: longest tick", do=_whole_tick)


def parked() -> Iterator[Task]:
    """Yield what many lanes that are parked on one key must not slow down."""
    yield Operation("parked: idle tick", do=dispensing.tick)
    yield Operation("parked: send behind the key", prepare=_hot, do=_send_hot)
    closed, opened = after("close_hot"), after("close_hot", "widen_hot", "open_hot")
    for name, do, prepare in (
        ("override that opens the key", lambda _: api.override("hot", until=LATER, concurrency=ROOM), closed),
        ("end_override that opens the key", lambda _: api.end_override("hot"), _override_hot),
        ("limit that opens the key", lambda _: api.limit("hot", {"concurrency": ROOM}), closed),
        ("pause", lambda _: api.pause("hot"), closed),
        ("resume that opens the key", lambda _: api.resume("hot"), _pause_hot),
        ("block", lambda _: api.block("hot", timedelta(seconds=1)), closed),
    ):
        yield Order(f"parked: {name}", prepare=prepare, do=do)
    yield Tick("parked: longest tick after the key has opened", prepare=opened, do=_whole_tick)


def ended() -> Iterator[Task]:
    """Yield what many ended calls must not slow down."""
    yield from calls.sending()
    yield from calls.running()
    yield from dispensing.ticking()
    yield from dispensing.cleaning()


VARIANTS = {
    "yardstick": Variant(
        groups=(
            calls.sending,
            calls.running,
            dispensing.ticking,
            calls.orders,
            http_api.writing,
            http_api.reading,
            pages.commands,
            pages.admin_pages,
            pages.admin_calls,
            pages.admin_lists,
            dispensing.cleaning,
            pages.bulk_orders,
            http_api.bulk_http,
        )
    ),
    "parked": Variant(adds=("parked",), groups=(parked,)),
    "due": Variant(adds=("due",), groups=(due_at_once,)),
    "expiring": Variant(adds=("expiring",), groups=(expiring,)),
    "lanes": Variant(adds=("lanes",), groups=(lanes,)),
    "awake": Variant(adds=("lanes", "awake"), groups=(awake,)),
    "ended": Variant(adds=("ended",), groups=(ended, http_api.reading, pages.admin_calls)),
}


def _far(system: System) -> str:
    return f"far:{1 + calls.random_numbers.randrange(system.size.lanes)}"


def _send_far(key: str, *, queue: str = "far") -> None:
    CallQueue.objects.send(nothing, keys=[key], queue=queue)


def _bulk_far(system: System) -> list[Call]:
    keys = [_far(system) for _ in range(AWAKE)]
    return [Call(task=nothing, keys=[keys[number % AWAKE]], queue="far") for number in range(MANY)]


def _wide_bulk_far(system: System) -> list[Call]:
    lanes_sent_to = min(LANES_SENT_TO, system.size.lanes)
    return [Call(task=nothing, keys=[f"far:{number + 1}"], queue="far") for number in range(lanes_sent_to)]


def _trip(_: System) -> None:
    take(Taker(queues=["awake"], becomes=State.DISPATCHED), room=AWAKE)


def _hot(system: System) -> list[str]:
    return ["hot", f"hot:{1 + calls.random_numbers.randrange(system.size.parked)}"]


def _send_hot(keys: list[str]) -> None:
    CallQueue.objects.send(nothing, keys=keys, queue="hot")


def _pause_hot(system: System) -> None:
    system.run("close_hot")
    api.pause("hot")
    # Behind the pause there is room.
    system.run("widen_hot")


def _override_hot(system: System) -> None:
    system.run("close_hot")
    api.override("hot", until=LATER, concurrency=0)
    system.run("widen_hot")


def _in_vain(batch: Callable[[], int]) -> None:
    """Do a batch and roll it back, so that there is another one of the same instant for the next sample."""
    with transaction.atomic(using=conf().database):
        ensure(batch(), "nothing is left")
        transaction.set_rollback(True, using=conf().database)


def _whole_tick(_: System) -> None:
    engine.tick()
