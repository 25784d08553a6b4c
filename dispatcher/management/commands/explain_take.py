"""manage.py explain_take: make the trips that would serve a key, show where their time goes, and roll them back."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from dispatcher import sql
from dispatcher.conf import counting
from dispatcher.lifecycle import take
from dispatcher.lifecycle.take import Taken, Taker
from dispatcher.management.command import console, explained, find_key
from dispatcher.management.key_table import Paint, rows
from dispatcher.models import Lane, Queue, RateLimitKey
from dispatcher.sql import functions
from dispatcher.states import Delivery, State

_NO_ROOM: Final = "--room: give a whole number from 1"
_NO_LANES: Final = "No call that is stored spends the key {!r}."
_UNTIMED: Final = (
    "For the time of each function, connect as a superuser; from PostgreSQL 15 on, GRANT SET ON PARAMETER "
    "track_functions is enough."
)
_UNPLANNED: Final = (
    "For the plan of each statement, connect as a superuser, where the server has the module auto_explain."
)
_PLACE: Final = re.compile(r"dispatcher_(\w+)_[0-9a-f]{8}\(.*?\) line (\d+)")
_PLAN: Final = re.compile(r"duration: (\S+) ms  plan:\n.*?(?<=\n)([^\n]+\(cost=.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class _Times:
    """How often a function ran, and how long, in milliseconds: in all, and without those that it has called."""

    name: str
    calls: int
    total_ms: float
    own_ms: float


@dataclass(frozen=True, kw_only=True)
class _Trip:
    """What a trip did before it was rolled back."""

    taken: Taken
    ms: float
    times: list[_Times]
    """Empty where the role may not have functions timed."""
    counted: list[str]
    """The plan of the function room for the key."""
    plans: list[str]
    """The plan of each statement that functions have run, with its place; empty where the role may not have them."""


class Command(BaseCommand):
    """Explain the trips of a key."""

    help = "Make the trips that would serve a key, show where their time goes, and roll them back: no call starts."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument("key", metavar="KEY")
        parser.add_argument("--room", type=int, default=1, metavar="CALLS", help="How many calls may start; 1.")

    @explained()
    def handle(self, *_: Any, key: str, room: int, no_color: bool = False, **__: Any) -> None:
        """Print a trip of each delivery. Raises CommandError for a key that does not exist, or room for no call."""
        if room < 1:
            raise CommandError(_NO_ROOM)
        found = find_key(key)
        with console(self.stdout, no_color=no_color) as screen:
            bold = partial(screen.paint, opts=("bold",))
            shown = [part for delivery, taker in _takers(found) for part in _shown(found, delivery, taker, room, bold)]
            self.stdout.write("\n".join([*(shown or [_NO_LANES.format(key)]), ""]))


def _takers(key: RateLimitKey) -> Iterator[tuple[Delivery, Taker]]:
    """Yield who takes calls that spend a key, or choose it for a group: one for each delivery of their queues."""
    groups = [f"{key.name[:length]}*" for length in range(1, len(key.name) + 1)]
    spent = RateLimitKey.objects.filter(Q(id=key.id) | Q(is_group=True, name__in=groups))
    lanes = Q(key_ids__overlap=[*spent.values_list("id", flat=True)])
    if key.name.startswith("queue:"):
        lanes |= Q(queue=key.name.removeprefix("queue:"))
    stored = dict(Queue.objects.values_list("name", "delivery"))
    queues: defaultdict[Delivery, list[str]] = defaultdict(list)
    for queue in Lane.objects.filter(lanes).order_by("queue").values_list("queue", flat=True).distinct():
        queues[Delivery(stored.get(queue, Delivery.BROKER))].append(queue)
    for delivery, names in sorted(queues.items()):
        is_broker = delivery is Delivery.BROKER
        yield (
            delivery,
            Taker(
                worker=None if is_broker else uuid4(),
                queues=names,
                becomes=State.DISPATCHED if is_broker else State.ACTIVE,
                is_pulled=delivery is Delivery.HTTP,
            ),
        )


def _shown(key: RateLimitKey, delivery: Delivery, taker: Taker, room: int, bold: Paint) -> Iterator[str]:
    """Yield what a trip would do, the times of its functions, and the plans."""
    # The first trip of a session plans its statements; the plans cost time that is not the trip's.
    _make(key, taker, room)
    trip, planned = _make(key, taker, room), _make(key, taker, room, has_plans=True)
    count = len(trip.taken.starts or trip.taken.dispatched)
    took = f"{trip.ms:.1f} ms with the way there and back"
    yield bold(f"{delivery}, {', '.join(taker.queues)}: {count} would start; {took}. Rolled back.\n")
    yield _table(trip.times, bold) if trip.times else _UNTIMED
    yield "\n".join(["\nroom: what the key allows", *trip.counted, "", *(planned.plans or [_UNPLANNED]), ""])


def _table(times: list[_Times], bold: Paint) -> str:
    slowest = sorted(times, key=lambda each: -each.total_ms)
    header, *lines = rows(
        [
            ("Function", [each.name for each in slowest]),
            ("Calls", [str(each.calls) for each in slowest]),
            ("Total ms", [f"{each.total_ms:.3f}" for each in slowest]),
            ("Own ms", [f"{each.own_ms:.3f}" for each in slowest]),
        ]
    )
    return "\n".join([bold(header), *lines])


def _make(key: RateLimitKey, taker: Taker, room: int, *, has_plans: bool = False) -> _Trip:
    """Make a trip, and roll it back."""
    with sql.own_transaction():
        is_timed = not has_plans and _may("measure", has_plans=False)
        if has_plans and _may("load_auto_explain"):
            _may("measure", has_plans=True)
        before = _times() if is_timed else {}
        with sql.notices() as notices:
            began_at = monotonic()
            taken = take.take(taker, room=room, keys=[key.id])
            ms = (monotonic() - began_at) * 1_000
        times = [_since(before.get(name), each) for name, each in _times().items()] if is_timed else []
        counted = sql.fetch("explain_room", str, {"keys": [key.id], "now": taken.at, **counting()})
        sql.connection().set_rollback(True)
    plans = [plan for message, context in notices if (plan := _plan(message, context)) is not None]
    return _Trip(taken=taken, ms=ms, times=[each for each in times if each.calls], counted=counted, plans=plans)


def _may(statement: str, **params: bool) -> bool:
    """Run a statement that changes what the server reports; return whether the role may."""
    try:
        with sql.atomic():
            sql.change(statement, params)
    except sql.DATABASE_ERRORS:
        return False
    return True


def _times() -> dict[str, _Times]:
    names = functions.installed_names()
    return {each.name: each for each in sql.fetch("report_function_times", _Times, {"names": names})}


def _since(before: _Times | None, after: _Times) -> _Times:
    """Return what was added, under the name that the function has in its file."""
    return _Times(
        name=after.name.removeprefix("dispatcher_").removesuffix(f"_{functions.version()}"),
        calls=after.calls - (before.calls if before else 0),
        total_ms=after.total_ms - (before.total_ms if before else 0),
        own_ms=after.own_ms - (before.own_ms if before else 0),
    )


def _plan(notice: str, context: str) -> str | None:
    """Return the plan of a statement within a function, after its place and its time; None for another notice."""
    place, plan = _PLACE.search(context), _PLAN.search(notice)
    return None if place is None or plan is None else f"{place[1]}, line {place[2]}: {plan[1]} ms\n{plan[2]}\n"
