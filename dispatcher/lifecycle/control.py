"""Control: what people do. Keys: limit, pause, resume, block, override. Calls: cancel, retry, run now.

Each verb leaves notes for what it opens or moves; the caller dispenses after the commit, so that they are read.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Case, F, Value, When
from django.db.models.functions import Greatest

from dispatcher import history, lanes, sql, validate
from dispatcher.errors import KeyNotFound, PolicyInvalid
from dispatcher.extension import registered
from dispatcher.history import By
from dispatcher.lanes import mixture
from dispatcher.limits.durations import parse_duration
from dispatcher.limits.policy import LASTING, LONGEST_PERIOD, Policy, strategy_of
from dispatcher.models import Block, CallQueue, Clock, Note, RateLimitKey
from dispatcher.states import DUE, TERMINAL, WAITING, State

_QUEUE: Final = "queue:"
_NOT_STARTED: Final = (*WAITING, State.DISPATCHED, *DUE)
_UNOVERRIDDEN: Final[dict[str, Any]] = {
    "override_until": None,
    **{f"override_{column}": None for column in Policy().columns() if strategy_of(column) not in LASTING},
}
"""The columns of a key without an override."""
_MOST_ENDED: Final = 100
"""From how many keys one tick takes the overrides."""


@dataclass(frozen=True, kw_only=True)
class _Blocked:
    id: int
    name: str
    blocked_until: datetime


@dataclass(frozen=True, kw_only=True)
class Revoked:
    """The calls that exist of those that were revoked, and those that were ended."""

    calls: list[UUID]
    cancelled: list[UUID]


def limit(name: str, limits: Mapping[str, Any], *, keeps_others: bool = False, by: By = "") -> int:
    """Store other limits for a key; return its id. Raises PolicyInvalid or KeyNotFound.

    keeps_others: strategies not named stay as they are; else they are taken away. Whether it is observed stays, too:
    other limits of a key do not enforce them.
    """
    policy = Policy.parse(limits)
    mixture.check_policy(name, policy)
    named = {
        column: value
        for column, value in policy.columns().items()
        if (not keeps_others and column != "is_observed") or strategy_of(column) in limits
    }
    with history.recorded("limit", by, names=[name]):
        columns = {**named, "limited_at": _now()}
        if history.actor(by).source != history.BY_SETTINGS:
            columns["is_from_template"] = False  # From now on it is a person's, and is kept even if it is unused.
        return _change(name, **columns)


def pause(name: str, *, by: By = "") -> int:
    """Let nothing start under a key; return its id. What runs goes on. Raises KeyNotFound."""
    with history.recorded("pause", by, names=[name]):
        return _switch(name, is_paused=True, kind="queue.paused", by={"paused_by": history.actor(by).name})


def resume(name: str, *, by: By = "") -> int:
    """Let a key's calls start again, after a pause or a block; return its id. Raises KeyNotFound."""
    with history.recorded("resume", by, names=[name]):
        return _switch(name, is_paused=False, kind="queue.resumed", by={"resumed_by": history.actor(by).name})


def block(
    wait: object,
    *,
    names: Collection[str],
    by: By | None = None,
    now: datetime | None = None,
) -> list[int]:
    """Let nothing start under these keys for this long; a longer block stands. Return their ids.

    wait: a timedelta, seconds or ISO 8601. by: None leaves it unrecorded: a provider asks. No lock is waited for: a key
    that another transaction keeps locked is blocked by the next trip that locks it. Raises PolicyInvalid.
    """
    wait = parse_duration(wait, "wait")
    if not timedelta(0) <= wait <= LONGEST_PERIOD:
        raise PolicyInvalid("wait", f"{wait} must be from 0 to 366 days; to stop a key for longer, pause it.")
    becomes: dict[str, dict[str, Any]] = {}
    with nullcontext() if by is None else history.recorded("block", by, names=names, becomes=becomes), sql.atomic():
        blocked = sql.fetch("block_keys", _Blocked, {"names": list(names), "wait": wait, "now": now})
        for key in blocked:
            becomes[key.name] = {"blocked_until": key.blocked_until}
            data = {"key": key.name, "until": key.blocked_until, "reason": "blocked"}
            registered().note_event("rate_limit.dynamic_adjusted", data)
    return [key.id for key in blocked]


def override(name: str, limits: Mapping[str, Any], until: datetime, *, by: By = "") -> int:
    """Put other limits in force until a time; strategies not named keep the key's own. Return the key's id.

    Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    ends_at = validate.moment("until", until, error=PolicyInvalid)
    if ends_at is None:
        raise PolicyInvalid("until", "required: say when the key's own limits hold again.")
    if ends_at <= (now := sql.now()):
        raise PolicyInvalid("until", f"{ends_at.isoformat()} is past (it is {now.isoformat()}); give a time to come.")
    policy = Policy.parse(limits, "override")
    for field in LASTING:
        if field in limits:
            raise PolicyInvalid(f"override.{field}", "an override changes limits only; store it with the key's own.")
    mixture.check_policy(name, policy, "override.per_worker")
    values: dict[str, Any] = {
        f"override_{column}": value if strategy_of(column) in limits else F(column)
        for column, value in policy.columns().items()
        if strategy_of(column) not in LASTING
    }
    with history.recorded("override", by, names=[name]):
        key = _change(name, **values, override_until=ends_at, limited_at=_now())
        # Its own limits are in force then by reading alone.
        _note(key, ends_at)
    return key


def end_override(name: str, *, by: By = "") -> bool:
    """Put a key's own limits in force again; return whether it had an override."""
    with history.recorded("end_override", by, names=[name]):
        has_override = RateLimitKey.objects.filter(name=name, override_until__isnull=False).exists()
        if has_override:
            _change(name, **_UNOVERRIDDEN, limited_at=_now())
    return has_override


def clear_overrides(*, now: datetime | None = None) -> int:
    """Take overrides off keys that have ended; return how many.

    For people who read the rows: the limits in force do not depend on it. A key that another transaction has locked is
    left to the next tick.
    """
    with sql.own_transaction():
        ended = RateLimitKey.objects.filter(override_until__lte=now or sql.now()).order_by("override_until")
        ids = list(ended.select_for_update(skip_locked=True, no_key=True).values_list("id", flat=True)[:_MOST_ENDED])
        since = Greatest("limited_at", "override_until")
        return RateLimitKey.objects.filter(id__in=ids).update(**_UNOVERRIDDEN, limited_at=since)


def cancel(calls: Iterable[UUID], *, only_revoked: bool = False, now: datetime | None = None) -> list[UUID]:
    """End calls that have not started, and return them; those that run, or have ended, are left as they are.

    only_revoked: only those that were revoked while they ran, and that no person has retried since.
    """
    with sql.own_transaction():
        return _cancel(_locked(calls, _NOT_STARTED), only_revoked=only_revoked, now=now)


def revoke(calls: Iterable[UUID], *, now: datetime | None = None) -> Revoked:
    """End calls that have not started, and note on those that run that no other attempt of them may start."""
    with sql.own_transaction():
        found = _locked(calls, list(State))
        CallQueue.objects.filter(id__in=found, state=State.ACTIVE).update(is_revoked=True)
        return Revoked(calls=found, cancelled=_cancel(found, only_revoked=False, now=now))


def retry(calls: Iterable[UUID]) -> list[CallQueue]:
    """Let ended calls wait again from attempt 0, their error history kept; return those that moved."""
    cleared = ("finished_at", "started_at", "dispatched_at", "published_at", "scheduled_at", "expires_at")
    counts = dict.fromkeys(("attempt", "crashes", "returns"), 0)
    empty = dict.fromkeys((*cleared, "result", "reason"))
    return _move(calls, TERMINAL, state=State.AVAILABLE, is_revoked=False, **counts, **empty)


def activate(calls: Iterable[UUID]) -> list[CallQueue]:
    """Let pending calls wait, for their time or their limits; return those that moved."""
    is_early = When(scheduled_at__gt=_now(), then=Value(State.SCHEDULED))
    return _move(calls, [State.PENDING], state=Case(is_early, default=Value(State.AVAILABLE)))


def run_now(calls: Iterable[UUID]) -> list[CallQueue]:
    """Let calls wait at the front of their lanes, whatever time they were sent for; limits still hold."""
    return sql.fetch("run_calls_now", CallQueue, {"calls": list(calls)})


def _switch(name: str, *, is_paused: bool, kind: str, by: Mapping[str, str]) -> int:
    # A resume ends a block, too.
    changes = {"is_paused": True} if is_paused else {"is_paused": False, "blocked_until": None}
    key = _change(name, has_note=not is_paused, **changes)
    if not is_paused:
        Block.objects.filter(key_id=key).delete()
    if name.startswith(_QUEUE):
        registered().note_event(kind, by, queue=name.removeprefix(_QUEUE))
    return key


def _change(name: str, *, has_note: bool = True, **columns: Any) -> int:
    """Change columns of a key, from the next trip on, and leave a note for it; return its id. Raises KeyNotFound.

    The caller has locked it, and has waited for a trip that holds it (see history.recorded).
    """
    keys = RateLimitKey.objects.filter(name=name)
    key = keys.values_list("id", flat=True).first()
    if key is None or not keys.update(**columns):
        raise KeyNotFound(name, lanes.known_names())
    if has_note:
        _note(key, _now())
    return key


def _now() -> datetime | Clock:
    """Return the time by the database's clock, read by the statement; that of a test where it has set one."""
    return sql.Clock.at or Clock()


def _note(key: int, at: datetime | Clock) -> None:
    """Have a trip look at a key then, at its groups, and at the lanes that are parked on these."""
    Note.objects.bulk_create([Note(at=at, key_id=key, is_forced=False)])


def _locked(calls: Iterable[UUID], states: Iterable[State]) -> list[UUID]:
    """Lock those of these calls that are in these states, in order of id, and return them.

    Later statements see what the previous holders of the locks wrote: the slots of a trip, for example.
    """
    found = CallQueue.objects.filter(id__in=list(calls), state__in=states).order_by("id")
    return list(found.select_for_update(no_key=True).values_list("id", flat=True))


def _cancel(ids: list[UUID], *, only_revoked: bool, now: datetime | None) -> list[UUID]:
    return sql.fetch("cancel_calls", UUID, {"calls": ids, "only_revoked": only_revoked, "now": now})


def _move(calls: Iterable[UUID], states: Iterable[State], **changes: Any) -> list[CallQueue]:
    """Change those of these calls that are in these states; leave a note for each lane, whose first call may differ."""
    with sql.own_transaction():
        rows = CallQueue.objects.filter(id__in=_locked(calls, states)).order_by("position", "id")
        rows.update(**changes)
        moved = list(rows.only("lane_id", "state", "position"))
        # The lowest position of each lane is written last.
        firsts = {call.lane_id: call.position for call in reversed(moved)}
        Note.objects.bulk_create(
            Note(at=_now(), lane_id=lane, is_forced=True, position=position)
            for lane, position in firsts.items()
            if lane is not None
        )
    return moved
