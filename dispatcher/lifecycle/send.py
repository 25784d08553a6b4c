"""Send: write calls into their lanes, in the caller's own transaction."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

import uuid_utils.compat as uuid7

from dispatcher import fields, sql
from dispatcher.calls import Call, More
from dispatcher.conf import conf, queue_grace
from dispatcher.errors import CallInvalid, CallNeverRuns, CallTooLarge, PolicyInvalid, UnknownKey
from dispatcher.events import policy_ignored
from dispatcher.models import CallQueue
from dispatcher.policy import Policy, Rate
from dispatcher.retry import Retry
from dispatcher.states import OnLimit, State

logger = logging.getLogger(__name__)

_PLAIN = More()
_AT_ONCE = 32
"""How many lone senders may decide on one queue at the same moment without exceeding its bound."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What calls of one lane share; the keys by name."""

    queue: str
    priority: int
    on_limit: OnLimit
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A checked call, ready to be written: JSON as text, times with zones."""

    id: UUID
    kind: Kind
    task: str
    args: str
    kwargs: str
    call_data: str | None
    meta: str
    costs: Mapping[str, int]
    retry: str | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    policies: Mapping[str, Policy]
    more: More
    envelope: str | None


@dataclass(frozen=True, kw_only=True)
class Written:
    """A row as the database wrote it; with a ticket if it was admitted at once."""

    id: UUID
    position: int
    lane_id: int
    state: str
    created_at: datetime
    ticket: UUID | None = None
    dispatched_at: datetime | None = None


def draft(call: Call, *, task: str, queue: str) -> Draft:
    """Check every field of a call. Raises CallInvalid or PolicyInvalid naming the field; nothing is written."""
    costs, policies, on_limit = _keys(call)
    names = tuple(sorted(costs))
    checked = Draft(
        id=call.more.id or uuid7.uuid7(),
        kind=Kind(
            queue=fields.name("queue", queue),
            priority=fields.whole("priority", call.priority, -100, 100),
            on_limit=_on_limit(call.on_limit if call.on_limit is not None else on_limit),
            names=names,
        ),
        task=fields.name("task", task),
        args=fields.json_text("args", fields.sequence("args", call.args)),
        kwargs=fields.json_text("kwargs", fields.mapping("kwargs", call.kwargs) or {}),
        call_data=None
        if call.call_data is None
        else fields.json_text("call_data", fields.mapping("call_data", call.call_data)),
        meta=fields.json_text("meta", fields.mapping("meta", call.meta) or {}),
        costs={name: cost for name, cost in costs.items() if cost != 1},
        retry=None if call.retry is None else json.dumps(Retry.parse(call.retry).as_json()),
        scheduled_at=fields.moment("scheduled_at", call.scheduled_at),
        expires_at=fields.moment("expires_at", call.expires_at),
        policies=policies,
        more=call.more,
        envelope=None if call.more.envelope is None else fields.json_text("envelope", call.more.envelope),
    )
    if checked.scheduled_at and checked.expires_at and checked.expires_at <= checked.scheduled_at:
        raise CallInvalid("expires_at", "is not after scheduled_at, so the call could never start.")
    size = sum(len(text.encode()) for text in (checked.args, checked.kwargs, checked.call_data or "", checked.meta))
    if size > conf().max_payload_bytes:
        raise CallTooLarge(
            "args",
            f"args, kwargs, call_data and meta take {size} bytes as JSON, over max_payload_bytes "
            f"({conf().max_payload_bytes}); store the content elsewhere and send a reference to it.",
        )
    return checked


def write(drafts: Sequence[Draft]) -> list[CallQueue]:
    """Write checked calls, in order. Raises UnknownKey or CallNeverRuns, then nothing was written."""
    if not drafts:
        return []
    _check_costs(drafts)
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(each.kind for each in drafts))}
    params = _params(drafts, kinds)
    policies = [given for each in drafts for given in each.policies.items()]
    with sql.atomic() if policies else nullcontext():
        _declare(policies)
        rows = sql.fetch("send_calls", Written, params)
        if not rows:
            with sql.atomic():
                open_lanes(kinds)
                rows = sql.fetch("send_calls", Written, params)
    written = {row.id: row for row in rows}
    return [_saved(each, written[each.id]) for each in drafts]


def write_one(draft: Draft) -> CallQueue:
    """Write one checked call in a transaction of its own, and admit it at once if nothing stands in its way.

    Raises UnknownKey or CallNeverRuns, then nothing was written.
    """
    settings = conf()
    params = {
        "id": draft.id,
        "names": list(draft.kind.names),
        "queue": draft.kind.queue,
        "priority": draft.kind.priority,
        "on_limit": draft.kind.on_limit.value,
        "task": draft.task,
        "args": draft.args,
        "kwargs": draft.kwargs,
        "call_data": draft.call_data,
        "meta": draft.meta,
        "retry": draft.retry,
        "margin": settings.margin,
        "ramp": settings.ramp,
        "lease": settings.dispatch_lease,
        "is_gated": queue_grace() is not None,
        "ahead": max(0, settings.dispatch_ahead - _AT_ONCE),
    }
    is_plain = not (draft.costs or draft.policies or draft.scheduled_at or draft.expires_at) and draft.more == _PLAIN
    if is_plain and (rows := sql.fetch("send_call", Written, params)):
        return _saved(draft, rows[0])
    return write([draft])[0]


def open_lanes(kinds: Mapping[Kind, int]) -> None:
    """Make the lanes of these kinds, and the keys that settings declare for them. Raises UnknownKey."""
    wanted = {name for kind in kinds for name in kind.names}
    known = set(_stored(wanted))
    missing = sorted(wanted - known)
    declared = {name: policy for name in missing if (policy := declared_policy(name)) is not None}
    if unknown := [name for name in missing if name not in declared]:
        raise UnknownKey(unknown)
    for kind in kinds:
        queue_key = f"queue:{kind.queue}"
        if (policy := declared_policy(queue_key)) is not None:
            declared[queue_key] = policy
    make_keys(declared)
    sql.change("make_lanes", {"kinds": _kinds_json(kinds)})


def declared_policy(name: str) -> Policy | None:
    """Return the policy that the settings declare for a key, exactly or by the longest template that fits."""
    keys = conf().keys
    if name in keys:
        return Policy.parse(keys[name], f"DISPATCHER['keys'][{name!r}]")
    fitting = [template for template in keys if "*" in template and fnmatchcase(name, template)]
    if not fitting:
        return None
    template = max(fitting, key=len)
    return Policy.parse(keys[template], f"DISPATCHER['keys'][{template!r}]")


def unknown_keys(names: set[str]) -> set[str]:
    """Return those of these keys that do not exist, and that no setting makes."""
    return {name for name in names - set(_stored(names)) if declared_policy(name) is None}


def make_keys(policies: Mapping[str, Policy]) -> None:
    """Make the keys that do not exist; a stored policy is never changed. Raises CallInvalid for a bad name."""
    if not policies:
        return
    for name in policies:
        fields.key_name(name)
    sql.change(
        "make_keys",
        {
            "name": list(policies),
            "concurrency": [policy.concurrency for policy in policies.values()],
            "rate_limit": [policy.rate and policy.rate.limit for policy in policies.values()],
            "rate_period": [policy.rate and policy.rate.period for policy in policies.values()],
            "throttle_limit": [policy.throttle and policy.throttle.limit for policy in policies.values()],
            "throttle_period": [policy.throttle and policy.throttle.period for policy in policies.values()],
        },
    )


@dataclass(frozen=True, kw_only=True)
class _StoredKey:
    id: int
    name: str
    concurrency: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    throttle_limit: int | None
    throttle_period: timedelta | None

    @property
    def policy(self) -> Policy:
        return Policy(
            concurrency=self.concurrency,
            rate=Rate(limit=self.rate_limit, period=self.rate_period) if self.rate_limit and self.rate_period else None,
            throttle=Rate(limit=self.throttle_limit, period=self.throttle_period)
            if self.throttle_limit and self.throttle_period
            else None,
        )


def _stored(names: set[str]) -> dict[str, Policy]:
    rows = sql.fetch("find_keys", _StoredKey, {"names": list(names)}) if names else []
    return {row.name: row.policy for row in rows}


def _declare(policies: Sequence[tuple[str, Policy]]) -> None:
    """Make the keys that calls bring policies for; report a policy that differs from the one that stands."""
    stored = _stored({name for name, _ in policies})
    first = dict(reversed(policies))
    make_keys({name: policy for name, policy in first.items() if name not in stored})
    for name, policy in policies:
        stands = stored.get(name, first[name])
        if not policy.is_unlimited and policy != stands:
            logger.warning("the policy given for key %r differs from the stored one, which stands", name)
            policy_ignored.send(sender=CallQueue, key=name, given=policy, stored=stands)


def _check_costs(drafts: Sequence[Draft]) -> None:
    """Refuse calls that cost more of a key than it ever has room for."""
    dear = {name for each in drafts for name in each.costs}
    if not dear:
        return
    policies = _stored(dear)
    for each in drafts:
        for name, cost in each.costs.items():
            policy = policies.get(name) or each.policies.get(name) or declared_policy(name)
            if policy is not None and not policy.fits(cost):
                raise CallNeverRuns(
                    f"keys[{name!r}]",
                    f"a cost of {cost} can never run under concurrency {policy.concurrency}, rate "
                    f"{policy.rate or 'unlimited'} and throttle {policy.throttle or 'unlimited'} (a year at the most); "
                    "lower the cost or raise the key's limit.",
                )


def _params(drafts: Sequence[Draft], kinds: Mapping[Kind, int]) -> dict[str, Any]:
    return {
        "kinds": _kinds_json(kinds),
        "now": None,
        "ids": [each.id for each in drafts],
        "kind_of": [kinds[each.kind] for each in drafts],
        "costs": [json.dumps(each.costs) for each in drafts],
        **{
            column: [getattr(each, column) for each in drafts]
            for column in (
                "task",
                "args",
                "kwargs",
                "call_data",
                "meta",
                "retry",
                "scheduled_at",
                "expires_at",
                "envelope",
            )
        },
        **{
            column: [getattr(each.more, column) for each in drafts]
            for column in ("timeout", "visibility", "unique_key", "is_pending")
        },
    }


def _kinds_json(kinds: Mapping[Kind, int]) -> str:
    return json.dumps([{"number": number, **asdict(kind)} for kind, number in kinds.items()])


def _saved(each: Draft, row: Written) -> CallQueue:
    call = CallQueue(
        id=row.id,
        position=row.position,
        lane_id=row.lane_id,
        task=each.task,
        args=json.loads(each.args),
        kwargs=json.loads(each.kwargs),
        call_data=each.call_data and json.loads(each.call_data),
        meta=json.loads(each.meta),
        queue=each.kind.queue,
        priority=each.kind.priority,
        on_limit=each.kind.on_limit,
        costs=dict(each.costs),
        state=State(row.state),
        retry=each.retry and json.loads(each.retry),
        scheduled_at=each.scheduled_at,
        expires_at=each.expires_at,
        timeout=each.more.timeout,
        visibility=each.more.visibility,
        unique_key=each.more.unique_key,
        envelope=each.envelope and json.loads(each.envelope),
        created_at=row.created_at,
        ticket=row.ticket,
        dispatched_at=row.dispatched_at,
    )
    # As Model.from_db leaves it, without a second trip for what is known already.
    call._state.adding = False  # noqa: SLF001
    call._state.db = conf().database  # noqa: SLF001
    return call


def _keys(call: Call) -> tuple[dict[str, int], dict[str, Policy], object]:
    """Return the cost of each key, the policies that come with the call, and the policy's on_limit."""
    given = call.keys if call.keys is not None else ()
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence | set | frozenset):
        raise CallInvalid("keys", f'{given!r} must be a list of names or {{name: cost}}; for one key give ["name"].')
    costs = {fields.key_name(name): given[name] if isinstance(given, Mapping) else 1 for name in given}
    policies: dict[str, Policy] = {}
    on_limit: object = None
    if call.rate_limit is not None:
        limits = dict(fields.mapping("rate_limit", call.rate_limit) or {})
        name = limits.pop("key", None)
        if name is None:
            raise PolicyInvalid("rate_limit.key", "required: name the key whose limits these are.")
        on_limit = limits.pop("on_limit", None)
        policies[fields.key_name(name)] = Policy.parse(limits, "rate_limit")
        costs.setdefault(name, 1)
    for name, cost in costs.items():
        fields.whole(f"keys[{name!r}]", cost, 1, 2**31 - 1)
    return costs, policies, on_limit


def _on_limit(value: object) -> OnLimit:
    if value is None:
        return OnLimit.WAIT
    try:
        return OnLimit(value)  # type: ignore[arg-type]
    except ValueError:
        raise CallInvalid("on_limit", f"{value!r} must be one of {', '.join(OnLimit)}.") from None
