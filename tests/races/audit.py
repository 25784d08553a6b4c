"""Check the whole database against the invariants of the dispatcher, by brute force over every row."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Q, QuerySet
from django.utils import timezone

from dispatcher.models import CallQueue, Lane, LaneSite, Note, RateLimitKey, Slot, Start
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, State

_IS_PUT_ASIDE = Q(oversized_key__isnull=False)
BROKEN = {
    "its state is unknown": ~Q(state__in=[state.value for state in State]),
    "a call in flight has a ticket, and no other": Q(state__in=IN_FLIGHT) ^ Q(ticket__isnull=False),
    "an active call has started": Q(state=State.ACTIVE, started_at=None),
    "an ended call has finished, and no other": Q(state__in=TERMINAL) ^ Q(finished_at__isnull=False),
    "a due call has a time": Q(state__in=DUE, scheduled_at=None),
    "it has a lane, or what makes it": Q(lane=None) ^ Q(placement__isnull=False),
    "a call in flight has a lane": Q(state__in=IN_FLIGHT, lane=None),
    "a call that is put aside waits": _IS_PUT_ASIDE & ~Q(state=State.AVAILABLE),
    "a call that is put aside has its cost, and no other": _IS_PUT_ASIDE ^ Q(oversized_cost__isnull=False),
    "a discarded call has a reason, and no other": Q(state=State.DISCARDED) ^ Q(reason__isnull=False),
}
"""Rules for the fields of a call, each with which calls break it."""


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
    now = now or timezone.now()
    found = [*_rows(), *_tickets(), *_slots(), *_totals(), *_placements(), *_places(now), *_attempts()]
    if has_ended:
        found += _ends()
    if is_fifo:
        found += _order()
    if not limits_changed:
        found += _limits(now)
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
    queue_keys = {
        key.name.removeprefix("queue:"): key.id for key in RateLimitKey.objects.filter(name__startswith="queue:")
    }
    names = dict(RateLimitKey.objects.values_list("id", "name"))
    lanes = {lane.id: {*lane.key_ids, *filter(None, [queue_keys.get(lane.queue)])} for lane in Lane.objects.all()}
    spent: dict[int, list[Spent]] = defaultdict(list)
    ids = {name: key for key, name in names.items()}
    fields = ("lane_id", "costs", "state", "chosen_keys", "dispatched_at", "started_at", "finished_at")
    for call in CallQueue.objects.values(*fields):
        is_held = call["state"] in (*IN_FLIGHT, *TERMINAL)
        costs = {key: call["costs"].get(names[key], 1) for key in (lanes[call["lane_id"]] if call["lane_id"] else ())}
        chosen = {ids[key]: call["costs"].get(group, 1) for group, key in (call["chosen_keys"] or {}).items()}
        for key, cost in {**costs, **chosen}.items():
            spent[key].append(
                Spent(
                    cost=cost,
                    dispatched_at=call["dispatched_at"] if is_held else None,
                    started_at=call["started_at"],
                    finished_at=call["finished_at"],
                )
            )
    return spent


def _totals() -> Iterable[str]:
    """Find starts of a key whose running total is not that of the one before and their own cost."""
    starts = Start.objects.order_by("key_id", "at", "total").values_list("key_id", "at", "total", "cost")
    for (key, _, before, _), (other, at, total, cost) in itertools.pairwise(starts):
        if key == other and total != before + cost:
            yield f"key {key} has started {before}, then {cost} at {at}: {total} in total"


def _limits(now: datetime) -> Iterable[str]:
    spent = spent_by_key()
    for key in RateLimitKey.objects.all():
        of_key = spent[key.id]
        slots = list(Slot.objects.filter(key=key).values_list("cost", "started_at"))
        if key.concurrency is not None and (held := sum(cost for cost, _ in slots)) > key.concurrency:
            yield f"{key}: {held} in slots, {key.concurrency} allowed"
        if key.concurrency is not None and (most := most_at_once(of_key)) > key.concurrency:
            yield f"{key}: {most} at once, {key.concurrency} allowed"
        if key.rate_limit is not None:
            unstarted = sum(cost for cost, started_at in slots if started_at is None)
            most = most_in_any_window(of_key, key.rate_period)
            if most > key.rate_limit:
                yield f"{key}: {most} starts in {key.rate_period}, {key.rate_limit} allowed"
            latest = [call for call in of_key if call.started_at and call.started_at > now - key.rate_period]
            if sum(call.cost for call in latest) + unstarted > key.rate_limit:
                yield f"{key}: {len(latest)} starts just now and {unstarted} to come, {key.rate_limit} allowed"
        if key.throttle_limit is not None:
            spacing = -(-key.throttle_period // key.throttle_limit)
            yield from (
                f"{key}: {second - first} apart, {spacing} allowed" for first, second in too_close(of_key, spacing)
            )


def _ends() -> Iterable[str]:
    for call in CallQueue.objects.exclude(state__in=TERMINAL):
        yield f"call {call.id} is {call.state} and has not ended"


def _rows() -> Iterable[str]:
    """Find calls and slots whose fields do not go together."""
    for rule, broken in BROKEN.items():
        yield from (f"call {call.id} is {call.state}: {rule}" for call in CallQueue.objects.filter(broken))
    yield from (f"{slot} costs less than 1" for slot in Slot.objects.filter(cost__lt=1))


def _tickets() -> Iterable[str]:
    tickets = list(CallQueue.objects.filter(ticket__isnull=False).values_list("ticket", flat=True))
    if len(tickets) != len(set(tickets)):
        yield "two calls have the same ticket"


def _attempts() -> Iterable[str]:
    for call in CallQueue.objects.all():
        failed = sum(1 for error in call.errors if error["type"] not in {"Expired", "LimitReached"})
        failed += max(0, call.error_count - len(call.errors))
        ran = failed + (call.state in {State.COMPLETED, State.ACTIVE})
        if call.attempt > ran:
            yield f"call {call.id} is {call.state} and counts {call.attempt} attempts, of which {ran} are known"


def _slots() -> Iterable[str]:
    held: dict[object, list[tuple[int | None, int]]] = defaultdict(list)
    for call_id, key_id, cost in Slot.objects.values_list("call_id", "key_id", "cost"):
        held[call_id].append((key_id, cost))
    in_flight = {call.id: call for call in CallQueue.objects.in_flight()}
    yield from (f"call {call_id} holds slots and is not in flight" for call_id in held.keys() - in_flight.keys())
    yield from (f"call {call_id} is in flight and holds no slot" for call_id in in_flight.keys() - held.keys())
    names = dict(RateLimitKey.objects.values_list("id", "name"))
    lanes = {lane.id: lane for lane in Lane.objects.all()}
    for call_id in held.keys() & in_flight.keys():
        call = in_flight[call_id]
        keys = {*lanes[call.lane_id].key_ids, *(key for key, name in names.items() if name == f"queue:{call.queue}")}
        costs = {names[key]: call.costs.get(names[key], 1) for key in keys}
        patterns = [name for name in costs if name.endswith("*")]
        costs |= {(call.chosen_keys or {})[name]: costs[name] for name in patterns}
        wanted = sorted((key, costs[name]) for key, name in names.items() if name in costs) or [(None, 1)]
        if sorted(held[call_id]) != wanted:
            yield f"call {call_id} holds {held[call_id]}, {wanted} is its cost"


def _placements() -> Iterable[str]:
    for call in CallQueue.objects.filter(lane=None, finished_at=None):
        yield f"call {call.id} is {call.state} and has no lane"
    for call in CallQueue.objects.filter(lane__isnull=False).exclude(lane_id__in=Lane.objects.values("id")):
        yield f"the lane of call {call.id} is gone, which is {call.state}"


def _places(now: datetime) -> Iterable[str]:
    """Find lanes over waiting calls that no trip would find: asleep, or parked on a key that nothing will open."""
    sites = list(LaneSite.objects.annotate(is_kept=Q(kept_until__isnull=False)).defer("kept_until").order_by("lane_id"))
    if [site.lane_id for site in sites] != sorted(Lane.objects.values_list("id", flat=True)):
        yield "not every lane has one site, or a site has no lane"
    in_line = CallQueue.objects.waiting().filter(oversized_key=None)
    waiting = set(in_line.values_list("lane_id", flat=True))
    noted = set(Note.objects.values_list("lane_id", flat=True))
    keys = {key.id: key for key in RateLimitKey.objects.all()}
    lanes = {lane.id: lane for lane in Lane.objects.filter(id__in=waiting)}
    kept = {site.place for site in sites if site.is_kept}  # workers of the first lane look at the key
    # Lanes were made ready for its room: who serves one of these looks at the key.
    served = [lanes[site.lane_id] for site in sites if site.place == 0 and site.lane_id in waiting]
    ready = {key for lane in served for key in lane.key_ids}
    for site in sites:
        if site.lane_id not in waiting or site.lane_id in noted:
            continue
        if site.place is None:
            yield f"lane {site.lane_id} sleeps over waiting calls"
        elif site.place < 0:
            spent = _spent_by(lanes[site.lane_id], keys.values())
            if not any(key.per_worker or key.override_per_worker for key in spent):
                yield f"lane {site.lane_id} waits for a worker with room, and its keys have no limit per worker"
        elif site.place > 0 and site.place not in kept | ready:
            yield from _parked(lanes[site.lane_id], keys.get(site.place), in_line, now)


def _parked(lane: Lane, key: RateLimitKey | None, in_line: QuerySet[CallQueue], now: datetime) -> Iterable[str]:
    """Find a lane that is parked on a key with room of which there is no note."""
    if key is None:
        yield f"lane {lane.id} is parked on a key that is gone"
        return
    costs = in_line.filter(lane=lane).order_by("position").values_list("costs", flat=True)
    cost = costs[0].get(key.name, 1)
    several = RateLimitKey.objects.filter(name__startswith=key.name[:-1], is_group=False) if key.is_group else []
    is_shut = _is_shut(key, cost, now) or (
        key.is_group and all(_is_shut(each, cost, now, is_member=True) for each in several)
    )
    if not is_shut and not Note.objects.filter(key_id__in=[key.id, *(each.id for each in several)]).exists():
        yield f"lane {lane.id} is parked on {key}, which nothing will open"


def _spent_by(lane: Lane, keys: Iterable[RateLimitKey]) -> list[RateLimitKey]:
    """Return the keys that calls of a lane may spend: also those of groups."""
    named = [key for key in keys if key.id in lane.key_ids or key.name == f"queue:{lane.queue}"]
    groups = tuple(key.name[:-1] for key in named if key.is_group)
    return [*named, *(key for key in keys if groups and key.name.startswith(groups))]


def _is_shut(key: RateLimitKey, cost: int, now: datetime, *, is_member: bool = False) -> bool:
    """Return whether a key has no room for a cost by its concurrency, or is paused.

    A call that costs more than the key allows at all waits apart, unless the key is one of several.
    """
    held = sum(Slot.objects.filter(key=key).values_list("cost", flat=True))
    concurrency = key.override_concurrency if key.override_until and key.override_until > now else key.concurrency
    is_full = concurrency is not None and held + cost > concurrency and (is_member or held > 0 or concurrency == 0)
    return key.is_paused or is_full


def _order() -> Iterable[str]:
    calls: dict[int, list[tuple[int, datetime]]] = defaultdict(list)
    admitted = CallQueue.objects.filter(dispatched_at__isnull=False).order_by("position")
    for lane_id, position, dispatched_at in admitted.values_list("lane_id", "position", "dispatched_at"):
        calls[lane_id].append((position, dispatched_at))
    for lane_id, of_lane in calls.items():
        times = [dispatched_at for _, dispatched_at in of_lane]
        if times != sorted(times):
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
