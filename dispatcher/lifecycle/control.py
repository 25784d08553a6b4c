"""Control: what people do. Keys: limit, pause, resume, block, override. Calls: cancel, retry, run now.

Each statement leaves notes for what it opens or moves; the caller dispenses after the commit, so that they are read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher import history, lanes, sql, validate
from dispatcher.errors import KeyNotFound, PolicyInvalid
from dispatcher.extension import registered
from dispatcher.history import By
from dispatcher.lanes import mixture
from dispatcher.limits.durations import parse_duration
from dispatcher.limits.policy import LONGEST_PERIOD, Policy
from dispatcher.states import State

_QUEUE: Final = "queue:"
_STRATEGIES: Final = ("concurrency", "per_worker", "rate", "throttle")
_LASTING: Final = ("fair_by", "weight", "observe")
"""What a policy has beside its limits: no override changes it."""


@dataclass(frozen=True, kw_only=True)
class _Blocked:
    id: int
    name: str
    blocked_until: datetime


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A call that waits again, for its time or in its lane, if it has one yet; those that were moved come in order."""

    id: UUID
    lane_id: int | None
    state: State


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
    changes = {f"has_{strategy}": not keeps_others or strategy in limits for strategy in (*_STRATEGIES, *_LASTING)}
    changes["has_observe"] = "observe" in limits
    policy = Policy.parse(limits)
    mixture.check_policy(name, policy)
    with history.recorded("limit", by, names=[name]):
        params = {"name": name, "is_settings": history.actor(by).source == history.BY_SETTINGS}
        return _only(sql.fetch("limit_key", int, {**params, **changes, **policy.columns()}), name)


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

    wait: a timedelta, seconds or ISO 8601. by: None leaves it unrecorded: a provider asks. Raises PolicyInvalid.
    """
    wait = parse_duration(wait, "wait")
    if not timedelta(0) <= wait <= LONGEST_PERIOD:
        raise PolicyInvalid("wait", f"{wait} must be from 0 to 366 days; to stop a key for longer, pause it.")
    with nullcontext() if by is None else history.recorded("block", by, names=names), sql.atomic():
        params = {"wait": wait, "names": list(names), "now": now}
        rows = sql.fetch("block_keys", _Blocked, params)
        for row in rows:
            data = {"key": row.name, "until": row.blocked_until.isoformat(), "reason": "blocked"}
            registered().note_event("rate_limit.dynamic_adjusted", data)
    return [row.id for row in rows]


def override(name: str, limits: Mapping[str, Any], until: datetime, *, by: By = "") -> int:
    """Put other limits in force until a time; strategies not named keep the key's own. Return the key's id.

    Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    ends_at = validate.moment("until", until, error=PolicyInvalid)
    if ends_at is None:
        raise PolicyInvalid("until", "required: say when the key's own limits hold again.")
    if ends_at <= (now := sql.now()):
        raise PolicyInvalid("until", f"{ends_at.isoformat()} is past (it is {now.isoformat()}); give a time to come.")
    named = {f"has_{strategy}": strategy in limits for strategy in _STRATEGIES}
    policy = Policy.parse(limits, "override")
    for field in _LASTING:
        if field in limits:
            raise PolicyInvalid(f"override.{field}", "an override changes limits only; store it with the key's own.")
    mixture.check_policy(name, policy, "override.per_worker")
    params = {"name": name, "until": ends_at, **named, **policy.columns()}
    with history.recorded("override", by, names=[name]):
        return _only(sql.fetch("override_key", int, params), name)


def end_override(name: str, *, by: By = "") -> list[int]:
    """Put a key's own limits in force again; return the keys whose override ended."""
    with history.recorded("end_override", by, names=[name]):
        return sql.fetch("end_override", int, {"name": name})


def cancel(calls: Iterable[UUID], *, only_revoked: bool = False, now: datetime | None = None) -> list[UUID]:
    """End calls that have not started, and return them; those that run, or have ended, are left as they are.

    only_revoked: only those that were revoked while they ran, and that no person has retried since.
    """
    ids = list(calls)
    with sql.own_transaction():
        sql.ask("lock_calls", object, {"calls": ids})
        asked = sql.ask("cancel_calls", UUID, {"calls": ids, "only_revoked": only_revoked, "now": now})
    return asked.rows()


def revoke(calls: Iterable[UUID], *, now: datetime | None = None) -> Revoked:
    """End calls that have not started, and note on those that run that no other attempt of them may start."""
    ids = list(calls)
    with sql.own_transaction():
        found = sql.ask("revoke_calls", UUID, {"calls": ids})
        cancelled = sql.ask("cancel_calls", UUID, {"calls": ids, "only_revoked": False, "now": now})
    return Revoked(calls=found.rows(), cancelled=cancelled.rows())


def retry(calls: Iterable[UUID]) -> list[Moved]:
    """Let ended calls wait again from attempt 0, their error history kept; return those that moved."""
    return _moved("retry_calls", calls)


def activate(calls: Iterable[UUID]) -> list[Moved]:
    """Let pending calls wait, for their time or their limits; return those that moved."""
    return _moved("activate_calls", calls)


def run_now(calls: Iterable[UUID]) -> list[Moved]:
    """Let calls wait at the front of their lanes, whatever time they were sent for; limits still hold."""
    return _moved("run_calls_now", calls)


def _switch(name: str, *, is_paused: bool, kind: str, by: Mapping[str, str]) -> int:
    with sql.atomic():
        key = _only(sql.fetch("pause_key", int, {"name": name, "is_paused": is_paused}), name)
        if name.startswith(_QUEUE):
            registered().note_event(kind, by, queue=name.removeprefix(_QUEUE))
    return key


def _moved(statement: str, calls: Iterable[UUID]) -> list[Moved]:
    return sql.fetch(statement, Moved, {"calls": list(calls)})


def _only(ids: Sequence[int], name: str) -> int:
    if not ids:
        raise KeyNotFound(name, lanes.known_names())
    return ids[0]
