"""Check the whole database against the invariants of the dispatcher, by brute force over every row."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F
from django.utils import timezone

from dispatcher.conf import conf, pass_bound
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey, Slot
from dispatcher.states import IN_FLIGHT, TERMINAL, Delivery, State


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
    found = [*_tickets(), *_slots(), *_known_use(), *_placements(), *_wakeups(now), *_attempts()]
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


def _known_use() -> Iterable[str]:
    for key in RateLimitKey.objects.filter(counted_admissions=F("admissions"), most_held__isnull=False):
        slots = list(Slot.objects.filter(key=key).values_list("cost", "started_at"))
        held = sum(cost for cost, _ in slots)
        unstarted = sum(cost for cost, started_at in slots if started_at is None)
        if held > (key.most_held or 0) or unstarted > (key.most_unstarted or 0):
            yield f"{key}: {held} in slots, {unstarted} not started; known: {key.most_held}, {key.most_unstarted}"


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


def _tickets() -> Iterable[str]:
    tickets = list(CallQueue.objects.filter(ticket__isnull=False).values_list("ticket", flat=True))
    if len(tickets) != len(set(tickets)):
        yield "two calls have the same ticket"
    for call in CallQueue.objects.exclude(state__in=IN_FLIGHT).filter(ticket__isnull=False):
        yield f"call {call.id} is {call.state} and has a ticket"


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


def _wakeups(now: datetime) -> Iterable[str]:
    """Find lanes over waiting calls that are neither awake nor parked on a key that somebody, or time, will open."""
    in_line = CallQueue.objects.waiting().filter(oversized_key=None)
    waiting = set(in_line.values_list("lane_id", flat=True))
    for lane in Lane.objects.select_related("parked_on").filter(id__in=waiting, is_awake=False):
        key = lane.parked_on
        if lane.is_held:
            yield from _held(lane)
            continue
        if key is None:
            yield f"lane {lane.id} sleeps over waiting calls"
            continue
        costs = in_line.filter(lane=lane).order_by("position").values_list("costs", flat=True)
        cost = costs[0].get(key.name, 1)
        several = RateLimitKey.objects.filter(name__startswith=key.name[:-1], is_group=False) if key.is_group else None
        is_shut = _is_shut(key, cost, now) or (
            several is not None and all(_is_shut(each, cost, now, is_member=True) for each in several)
        )
        if not (is_shut or key.is_paused or key.opens_at is not None):
            yield f"lane {lane.id} is parked on {key}, which nothing will open"


def _is_shut(key: RateLimitKey, cost: int, now: datetime, *, is_member: bool = False) -> bool:
    """Return whether a key has no room for a cost by its concurrency, or is paused.

    A call that costs more than the key allows at all waits apart, unless the key is one of several.
    """
    held = sum(Slot.objects.filter(key=key).values_list("cost", flat=True))
    concurrency = key.override_concurrency if key.override_until and key.override_until > now else key.concurrency
    is_full = concurrency is not None and held + cost > concurrency and (is_member or held > 0 or concurrency == 0)
    return key.is_paused or is_full


def _held(lane: Lane) -> Iterable[str]:
    """Find a lane whose queue has held it and has room again; half of it may be left until a finish fills it up.

    Workers that take calls themselves look for them in held lanes.
    """
    if Queue.objects.filter(name=lane.queue).exclude(delivery=Delivery.BROKER).exists():
        return
    on_way = CallQueue.objects.filter(queue=lane.queue, state=State.DISPATCHED).count()
    in_flight = CallQueue.objects.in_flight().filter(queue=lane.queue).exists()
    if conf().queue_grace is None and not in_flight and on_way < pass_bound(conf()):
        yield f"lane {lane.id} is held by its queue, which has room and nothing to let it go on"


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
