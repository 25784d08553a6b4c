"""Check the whole database against the invariants of the dispatcher, by brute force over every row."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models, transaction
from django.utils import timezone

from dispatcher.models import CallQueue, Lane, LaneSite, Note, RateLimitKey, Slot, Start
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, State

BROKEN: Mapping[str, Callable[[Any], bool]] = {
    "its state is unknown": lambda call: call.state not in set(State),
    "a call in flight has a ticket, and no other": lambda call: (call.state in IN_FLIGHT) != (call.ticket is not None),
    "an active call has started": lambda call: call.state == State.ACTIVE and call.started_at is None,
    "an ended call has finished, and no other": lambda call: (call.state in TERMINAL) != (call.finished_at is not None),
    "a due call has a time": lambda call: call.state in DUE and call.scheduled_at is None,
    "it has a lane, or what makes it": lambda call: (call.lane_id is None) != (call.placement is not None),
    "a call in flight has a lane": lambda call: call.state in IN_FLIGHT and call.lane_id is None,
    "a call that has not ended has a lane": lambda call: call.lane_id is None and call.finished_at is None,
    "a call that is put aside waits": lambda call: call.oversized_key_id and call.state != State.AVAILABLE,
    "a call that is put aside has its cost, and no other": (
        lambda call: (call.oversized_key_id is None) != (call.oversized_cost is None)
    ),
    "a discarded call has a reason, and no other": (
        lambda call: (call.state == State.DISCARDED) != (call.reason is not None)
    ),
}
"""Rules for the fields of a call, each with which calls break it."""
_CALL = (
    *("id", "state", "ticket", "lane_id", "position", "placement", "queue", "costs", "chosen_keys"),
    *("oversized_key_id", "oversized_cost", "reason", "attempt", "errors", "error_count"),
    *("scheduled_at", "dispatched_at", "started_at", "finished_at"),
)


class _Rows:
    """The whole database, read once: a test run audits some ten thousand times."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.calls = _read(CallQueue, *_CALL)
        self.keys = {key.id: key for key in RateLimitKey.objects.all()}
        self.ids = {key.name: key.id for key in self.keys.values()}
        self.lanes = {lane.id: lane for lane in _read(Lane, "id", "queue", "key_ids")}
        is_kept = models.Q(kept_until__isnull=False)  # until "infinity", maybe, which is no datetime
        self.sites = list(
            LaneSite.objects.annotate(is_kept=is_kept).values_list("lane_id", "place", "is_kept", named=True)
        )
        self.slots = _read(Slot, "call_id", "key_id", "cost", "started_at")
        self.notes = _read(Note, "lane_id", "key_id")

    def spent_by(self, lane: Any) -> list[RateLimitKey]:
        """Return the keys that calls of a lane spend: the queue's own included."""
        ids = {*lane.key_ids, self.ids.get(f"queue:{lane.queue}")}
        return [key for number in ids if (key := self.keys.get(number)) is not None]

    def members(self, group: RateLimitKey) -> list[RateLimitKey]:
        """Return the keys of a group."""
        return [key for key in self.keys.values() if not key.is_group and key.name.startswith(group.name[:-1])]

    def slots_of(self, key: RateLimitKey) -> list[Any]:
        """Return the slots of a key."""
        return [slot for slot in self.slots if slot.key_id == key.id]


@contextmanager
def _one_snapshot() -> Iterator[None]:
    """Read all rows as they are at one moment, beside who changes them; in a caller's transaction as before."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def _read(model: type[models.Model], *fields: str) -> list[Any]:
    return list(model._default_manager.values_list(*fields, named=True))  # noqa: SLF001 -- documented by Django


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one call spent of one key, and when."""

    cost: int
    dispatched_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


def audit(
    *, has_ended: bool = True, is_fifo: bool = False, limits_changed: bool = False, now: datetime | None = None
) -> None:
    """Assert that every invariant holds.

    has_ended: every call has reached a terminal state. is_fifo: no call was put back, put off or moved, so each
    lane's calls were admitted in order of sending. limits_changed: past starts were under other limits. now: what time
    it is, if not the clock's.
    """
    with _one_snapshot():
        rows = _Rows(now or timezone.now())
        found = [*_fields(rows), *_slots(rows), *_totals(), *_places(rows), *_attempts(rows)]
    if has_ended:
        found += [
            f"call {call.id} is {call.state} and has not ended" for call in rows.calls if call.state not in TERMINAL
        ]
    if is_fifo:
        found += _order(rows)
    if not limits_changed:
        found += _limits(rows)
    assert not found, "\n".join(found)


def most_at_once(spent: Iterable[Spent]) -> int:
    """Return the most cost that was held at any moment, from the admission to the finish of each call."""
    now = timezone.now()
    moments = sorted(
        (moment, change)
        for call in spent
        if call.dispatched_at is not None
        for moment, change in ((call.dispatched_at, call.cost), (call.finished_at or now, -call.cost))
    )
    held = most = 0
    for _, change in moments:
        held += change
        most = max(most, held)
    return most


def most_in_any_window(spent: Iterable[Spent], period: timedelta) -> int:
    """Return the most cost that was started in any window of this length, wherever it begins."""
    starts = sorted((call.started_at, call.cost) for call in spent if call.started_at is not None)
    return max(
        (sum(cost for at, cost in starts[number:] if at < begin + period) for number, (begin, _) in enumerate(starts)),
        default=0,
    )


def too_close(spent: Iterable[Spent], spacing: timedelta) -> list[tuple[datetime, datetime]]:
    """Return pairs of consecutive starts that are closer than the cost of the first allows."""
    starts = sorted((call.started_at, call.cost) for call in spent if call.started_at is not None)
    return [
        (first, second) for (first, cost), (second, _) in itertools.pairwise(starts) if second - first < spacing * cost
    ]


def spent_by_key() -> dict[int, list[Spent]]:
    """Return what every call spent of every key: the queue's own key, and those chosen of its groups, included."""
    return _spent_by_key(_Rows(timezone.now()))


def _spent_by_key(rows: _Rows) -> dict[int, list[Spent]]:
    spent: dict[int, list[Spent]] = defaultdict(list)
    ids = {key.name: key.id for key in rows.keys.values()}
    of_lane = {lane.id: rows.spent_by(lane) for lane in rows.lanes.values()}
    for call in rows.calls:
        is_held = call.state in IN_FLIGHT or call.state in TERMINAL
        costs = {key.id: call.costs.get(key.name, 1) for key in of_lane.get(call.lane_id, ())}
        chosen = {ids[name]: call.costs.get(group, 1) for group, name in (call.chosen_keys or {}).items()}
        for key, cost in {**costs, **chosen}.items():
            spent[key].append(
                Spent(
                    cost=cost,
                    dispatched_at=call.dispatched_at if is_held else None,
                    started_at=call.started_at,
                    finished_at=call.finished_at,
                )
            )
    return spent


def _totals() -> Iterable[str]:
    """Find starts of a key whose running total is not that of the one before and their own cost."""
    starts = Start.objects.order_by("key_id", "at", "total").values_list("key_id", "at", "total", "cost")
    for (key, _, before, _), (other, at, total, cost) in itertools.pairwise(starts):
        if key == other and total != before + cost:
            yield f"key {key} has started {before}, then {cost} at {at}: {total} in total"


def _limits(rows: _Rows) -> Iterable[str]:
    spent = _spent_by_key(rows)
    for key in rows.keys.values():
        if key.is_observed:
            continue
        of_key, slots = spent[key.id], rows.slots_of(key)
        if key.concurrency is not None and (held := sum(slot.cost for slot in slots)) > key.concurrency:
            yield f"{key}: {held} in slots, {key.concurrency} allowed"
        if key.concurrency is not None and (most := most_at_once(of_key)) > key.concurrency:
            yield f"{key}: {most} at once, {key.concurrency} allowed"
        if key.rate_limit is not None:
            unstarted = sum(slot.cost for slot in slots if slot.started_at is None)
            most = most_in_any_window(of_key, key.rate_period)
            if most > key.rate_limit:
                yield f"{key}: {most} starts in {key.rate_period}, {key.rate_limit} allowed"
            latest = [call for call in of_key if call.started_at and call.started_at > rows.now - key.rate_period]
            if sum(call.cost for call in latest) + unstarted > key.rate_limit:
                yield f"{key}: {len(latest)} starts just now and {unstarted} to come, {key.rate_limit} allowed"
        if key.throttle_limit is not None:
            spacing = -(-key.throttle_period // key.throttle_limit)
            yield from (
                f"{key}: {second - first} apart, {spacing} allowed" for first, second in too_close(of_key, spacing)
            )


def _fields(rows: _Rows) -> Iterable[str]:
    """Find calls and slots whose fields do not go together."""
    for call in rows.calls:
        yield from (f"call {call.id} is {call.state}: {rule}" for rule, is_broken in BROKEN.items() if is_broken(call))
        if call.lane_id is not None and call.lane_id not in rows.lanes:
            yield f"the lane of call {call.id} is gone, which is {call.state}"
    yield from (f"{slot} costs less than 1" for slot in rows.slots if slot.cost < 1)
    tickets = [call.ticket for call in rows.calls if call.ticket is not None]
    if len(tickets) != len(set(tickets)):
        yield "two calls have the same ticket"


def _attempts(rows: _Rows) -> Iterable[str]:
    for call in rows.calls:
        failed = sum(1 for error in call.errors if error["type"] not in {"Expired", "LimitReached"})
        failed += max(0, call.error_count - len(call.errors))
        ran = failed + (call.state in {State.COMPLETED, State.ACTIVE})
        if call.attempt > ran:
            yield f"call {call.id} is {call.state} and counts {call.attempt} attempts, of which {ran} are known"


def _slots(rows: _Rows) -> Iterable[str]:
    held: dict[object, list[tuple[int | None, int]]] = defaultdict(list)
    for slot in rows.slots:
        held[slot.call_id].append((slot.key_id, slot.cost))
    in_flight = {call.id: call for call in rows.calls if call.state in IN_FLIGHT}
    yield from (f"call {call_id} holds slots and is not in flight" for call_id in held.keys() - in_flight.keys())
    yield from (f"call {call_id} is in flight and holds no slot" for call_id in in_flight.keys() - held.keys())
    for call_id in held.keys() & in_flight.keys():
        call = in_flight[call_id]
        costs = {key.name: call.costs.get(key.name, 1) for key in rows.spent_by(rows.lanes[call.lane_id])}
        costs |= {(call.chosen_keys or {})[name]: cost for name, cost in costs.items() if name.endswith("*")}
        wanted = sorted((key.id, costs[key.name]) for key in rows.keys.values() if key.name in costs) or [(None, 1)]
        if sorted(held[call_id]) != wanted:
            yield f"call {call_id} holds {held[call_id]}, {wanted} is its cost"


def _places(rows: _Rows) -> Iterable[str]:
    """Find lanes over waiting calls that no trip would find: asleep, or parked on a key that nothing will open."""
    if sorted(site.lane_id for site in rows.sites) != sorted(rows.lanes):
        yield "not every lane has one site, or a site has no lane"
    waiting: dict[int, list[Any]] = defaultdict(list)
    for call in sorted(rows.calls, key=lambda call: call.position):
        if call.state == State.AVAILABLE and call.oversized_key_id is None:
            waiting[call.lane_id].append(call)
    noted = {note.lane_id for note in rows.notes}
    kept = {site.place for site in rows.sites if site.is_kept}  # workers of the first lane look at it
    # Lanes were made ready for its room: who serves one of these looks at the key.
    served = [rows.lanes[site.lane_id] for site in rows.sites if site.place == 0 and site.lane_id in waiting]
    ready = {key for lane in served for key in lane.key_ids}
    for site in rows.sites:
        if site.lane_id not in waiting or site.lane_id in noted:
            continue
        lane = rows.lanes[site.lane_id]
        if site.place is None:
            yield f"lane {lane.id} sleeps over waiting calls"
        elif site.place < 0:
            spent = rows.spent_by(lane)
            spent += [key for group in spent if group.is_group for key in rows.members(group)]
            if not any(key.per_worker or key.override_per_worker for key in spent):
                yield f"lane {lane.id} waits for a worker with room, and its keys have no limit per worker"
        elif site.place > 0 and site.place not in kept | ready:
            yield from _parked(rows, lane, rows.keys.get(site.place), waiting[lane.id][0])


def _parked(rows: _Rows, lane: Any, key: RateLimitKey | None, first: Any) -> Iterable[str]:
    """Find a lane that is parked on a key with room of which there is no note; `first`: its first call."""
    if key is None:
        yield f"lane {lane.id} is parked on a key that is gone"
        return
    cost = first.costs.get(key.name, 1)
    several = rows.members(key) if key.is_group else []
    is_shut = _is_shut(rows, key, cost) or (
        key.is_group and all(_is_shut(rows, each, cost, is_member=True) for each in several)
    )
    if not is_shut and not {key.id, *(each.id for each in several)} & {note.key_id for note in rows.notes}:
        yield f"lane {lane.id} is parked on {key}, which nothing will open"


def _is_shut(rows: _Rows, key: RateLimitKey, cost: int, *, is_member: bool = False) -> bool:
    """Return whether a key has no room for a cost by its concurrency, or is paused.

    A call that costs more than the key allows at all waits apart, unless the key is one of several.
    """
    held = sum(slot.cost for slot in rows.slots_of(key))
    concurrency = key.override_concurrency if key.override_until and key.override_until > rows.now else key.concurrency
    is_full = concurrency is not None and held + cost > concurrency and (is_member or held > 0 or concurrency == 0)
    return key.is_paused or (is_full and not key.is_observed)


def _order(rows: _Rows) -> Iterable[str]:
    times: dict[int, list[datetime]] = defaultdict(list)
    for call in sorted(rows.calls, key=lambda call: call.position):
        if call.dispatched_at is not None:
            times[call.lane_id].append(call.dispatched_at)
    for lane_id, of_lane in times.items():
        if of_lane != sorted(of_lane):
            yield f"lane {lane_id} did not admit its calls in order of sending"


def use_now(names: Sequence[str]) -> dict[str, int]:
    """Return the cost of the slots of each key, in one snapshot."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT key.name, COALESCE(sum(slot.cost), 0) FROM dispatcher_ratelimitkey AS key"
            " LEFT JOIN dispatcher_slot AS slot ON slot.key_id = key.id WHERE key.name = ANY (%s) GROUP BY key.name",
            [list(names)],
        )
        return dict(cursor.fetchall())
