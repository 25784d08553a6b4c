"""Send: write calls into their lanes, in the caller's own transaction."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import uuid_utils.compat as uuid7

from dispatcher import groups, lanes, sql, validate
from dispatcher.conf import conf, is_eager
from dispatcher.errors import CallInvalid, CallNeverRuns, CallTooLarge, PolicyInvalid
from dispatcher.extension import registered
from dispatcher.lanes import Kind, Placement, mixture
from dispatcher.limits.policy import Policy
from dispatcher.limits.retry import Retry
from dispatcher.models import CallQueue
from dispatcher.request import Call, Extras
from dispatcher.signals import policy_ignored
from dispatcher.states import OnLimit, State

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A checked call, ready to be written: JSON as text, times with zones."""

    id: UUID
    kind: Kind
    task: str
    texts: Mapping[str, str]
    """JSON by column, of those that are not null."""
    costs: Mapping[str, int]
    scheduled_at: datetime | None
    expires_at: datetime | None
    policies: Mapping[str, Policy]
    extras: Extras | None
    scheduled_in: timedelta | None
    expires_in: timedelta | None

    @property
    def is_pending(self) -> bool:
        """Whether it waits for somebody to activate it."""
        return self.extras is not None and self.extras.is_pending

    @property
    def soonest(self) -> datetime:
        """When it may start; LATEST if not before a time or an event that comes after the send."""
        if self.is_pending or (self.scheduled_in is not None and self.scheduled_in > timedelta(0)):
            return validate.LATEST
        return self.scheduled_at or validate.EARLIEST

    def as_json(self, kind: int) -> str:
        """Write it for the statement. kind: the number of its kind."""
        columns = {name: value for name in _COLUMNS if (value := getattr(self, name)) is not None}
        texts = "".join(f',"{name}":{text}' for name, text in self.texts.items())
        return f"{_encoder.encode({'kind': kind, **columns})[:-1]}{texts}}}"


_COLUMNS: Final = ("id", "task", "costs", "is_pending", "scheduled_at", "expires_at", "scheduled_in", "expires_in")
"""What a draft has beside its kind and its texts."""
_encoder: Final = json.JSONEncoder(
    default=lambda value: sql.interval(value) if isinstance(value, timedelta) else str(value)
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A row as the database wrote it."""

    id: UUID
    position: int
    lane_id: int | None
    key_costs: list[int] | None
    state: str
    created_at: datetime
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    may_wake: bool = True
    """Whether a process was idle, or calls of a queue that was sent to are published."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The calls that were written, in order."""

    calls: list[CallQueue]
    seen_at: float = inf
    """When the statement saw that no process need be woken, by the monotonic clock; -inf: one is to be."""


def draft(
    call: Call,
    *,
    task: str,
    queue: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    scheduled_in: timedelta | None = None,
    expires_in: timedelta | None = None,
    call_id: UUID | None = None,
) -> Draft:
    """Check every field of a call. Raises CallInvalid or PolicyInvalid naming the field; nothing is written.

    options, scheduled_in, expires_in: see signature.SendRequest. call_id: its id, if it has one already.
    """
    costs, policies, on_limit = _keys(call)
    checked = Draft(
        id=call_id or (call.extras and call.extras.id) or uuid7.uuid7(),
        kind=Kind(
            queue=validate.name("queue", queue),
            priority=validate.whole("priority", call.priority, -100, 100),
            on_limit=_on_limit(call.on_limit if call.on_limit is not None else on_limit),
            names=tuple(sorted(costs)),
        ),
        task=validate.name("task", task),
        texts=_texts(call, options),
        costs={name: cost for name, cost in costs.items() if cost != 1},
        scheduled_at=validate.moment("scheduled_at", call.scheduled_at),
        expires_at=validate.moment("expires_at", call.expires_at),
        policies=policies,
        extras=call.extras,
        scheduled_in=scheduled_in,
        expires_in=expires_in,
    )
    is_over = checked.scheduled_at and checked.expires_at and checked.expires_at <= checked.scheduled_at
    if is_over and not (call.extras and call.extras.is_celerys):
        raise CallInvalid("expires_at", "is not after scheduled_at, so the call could never start.")
    return checked


def _texts(call: Call, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the JSON of a call by column, without what is null. Raises CallInvalid or CallTooLarge."""
    # Only Celery's own JSON has types beyond JSON's that come back as they were.
    is_json = "serializer" not in options
    texts = {
        "args": validate.json_text("args", validate.sequence("args", call.args), has_celerys=is_json),
        "kwargs": validate.json_text("kwargs", validate.mapping("kwargs", call.kwargs) or {}, has_celerys=is_json),
        "meta": validate.json_text("meta", validate.mapping("meta", call.meta) or {}),
    }
    if call.call_data is not None:
        texts["call_data"] = validate.json_text("call_data", validate.mapping("call_data", call.call_data))
    if call.headers:
        texts["headers"] = validate.json_text("headers", dict(call.headers))
    if call.retry is not None:
        texts["retry"] = json.dumps(Retry.parse(call.retry).as_json())
    if options:
        texts["options"] = validate.json_text("options", dict(options), has_celerys=True)
    beside = None if call.extras is None else call.extras.text()
    check_size([*texts.values(), beside or ""])
    return texts


def check_size(texts: Iterable[str]) -> None:
    """Check how much all texts of a call take together. Raises CallTooLarge."""
    size = sum(len(text.encode()) for text in texts)
    if size > conf().max_payload_bytes:
        raise CallTooLarge(
            "args",
            f"all fields of the call take {size} bytes as JSON together, over max_payload_bytes "
            f"({conf().max_payload_bytes}); store the content elsewhere and send a reference to it.",
        )


def write(drafts: Sequence[Draft]) -> Sent:
    """Write checked calls, in order. Raises UnknownKey or CallNeverRuns, then nothing was written.

    Keys and lanes that do not exist are made before, in a transaction of their own. Within a caller's transaction, and
    where another one is in the way, the calls are written without a lane: `place` gives them theirs after the commit.
    """
    if not drafts:
        return Sent(calls=[])
    _check_costs(drafts)
    _check_expiry(drafts)
    policies = [given for each in drafts for given in each.policies.items()]
    _report_ignored(policies)
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(each.kind for each in drafts))}
    placements: dict[Kind, Placement] = {}
    rows, seen_at = _insert(drafts, kinds, placements)
    if not rows:
        missing = lanes.missing_keys(kinds, dict(reversed(policies)))
        mixture.check_kinds(kinds, missing)
        senders = {
            name: by
            for each in reversed(drafts)
            for name in each.policies
            if each.extras is not None and (by := each.extras.sender) is not None
        }
        placements = {kind: lanes.placement_of(kind, missing, senders) for kind in kinds}
        if not sql.in_transaction():
            lanes.open_lanes(kinds, missing, senders)
        rows, seen_at = _insert(drafts, kinds, placements)
    written = {row.id: row for row in rows}
    calls = [_saved(each, written[each.id], placements.get(each.kind)) for each in drafts]
    return Sent(calls=calls, seen_at=seen_at)


def _report_ignored(policies: Sequence[tuple[str, Policy]]) -> None:
    """Report the policies of calls that differ from those that stand."""
    stored = lanes.stored_policies({name for name, _ in policies})
    first = dict(reversed(policies))
    for name, policy in policies:
        stands = stored.get(name, first[name])
        if not policy.is_unlimited and policy != stands:
            logger.warning("the policy given for key %r differs from the stored one, which stands", name)
            report = partial(policy_ignored.send_robust, sender=CallQueue, key=name, given=policy, stored=stands)
            sql.after_commit(report)


def _check_expiry(drafts: Sequence[Draft]) -> None:
    """Refuse calls that have expired by the database's clock; those of Celery's and over HTTP are discarded."""
    own = [each for each in drafts if each.extras is None or not (each.extras.is_celerys or each.extras.text())]
    times = [each.expires_at for each in own if each.expires_at is not None]
    if times and min(times) <= (now := sql.now()):
        raise CallInvalid(
            "expires_at", f"{min(times).isoformat()} is past (it is {now.isoformat()}), so the call could never start."
        )


def _check_costs(drafts: Sequence[Draft]) -> None:
    """Refuse calls that cost more of a key than it ever has room for."""
    dear = {name for each in drafts for name in each.costs}
    if not dear:
        return
    policies = lanes.stored_policies(dear)
    members = {name: lanes.member_policies(name) for name in dear if groups.is_group(name)}
    for each in drafts:
        for name, cost in each.costs.items():
            policy = policies.get(name) or each.policies.get(name) or lanes.declared_policy(name)
            if members.get(name) and not any(member.fits(cost) for member in members[name]):
                raise CallNeverRuns(
                    f"keys[{name!r}]",
                    f"a cost of {cost} can never run: it is more than any of the {len(members[name])} keys that match "
                    "allows; lower the cost or raise a limit.",
                )
            if policy is not None and not policy.fits(cost):
                raise CallNeverRuns(
                    f"keys[{name!r}]",
                    f"a cost of {cost} can never run: {policy.exceeded_by(cost)}; lower the cost or raise the limit.",
                )


def _insert(
    drafts: Sequence[Draft], kinds: Mapping[Kind, int], placements: Mapping[Kind, Placement]
) -> tuple[list[Written], float]:
    """Write the rows; without placements none if a lane is missing, with them those of such a lane without one.

    Return them, and what is Sent.seen_at.
    """
    soonest: dict[Kind, datetime] = {}
    for each in drafts:
        soonest[each.kind] = min(each.soonest, soonest.get(each.kind, validate.LATEST))
    params = {
        "kinds": lanes.kinds_json(kinds, placements, soonest),
        "drafts": f"[{','.join(each.as_json(kinds[each.kind]) for each in drafts)}]",
        "now": None,
    }
    extras = {each.id: each.extras for each in drafts if each.extras is not None and each.extras.is_stored}
    began = monotonic()
    with sql.together():
        asked = sql.ask("send_calls", Written, params)
        if extras:
            registered().store_extras(extras)
    written = asked.rows()
    return written, -inf if written and (written[0].may_wake or is_eager()) else began


def _saved(each: Draft, row: Written, placement: Placement | None = None) -> CallQueue:
    """Return the call as it is stored, without a second trip for what is known already."""
    defaults = _defaults()
    stored = defaults | {name: value for name, value in vars(row).items() if name in defaults}
    stored |= {
        "placement": placement if row.lane_id is None else None,
        "task": each.task,
        **{name: json.loads(text) for name, text in each.texts.items()},
        "queue": each.kind.queue,
        "priority": each.kind.priority,
        "on_limit": each.kind.on_limit,
        "costs": dict(each.costs),
        "state": State(row.state),
        "errors": [],
    }
    return CallQueue.from_db(conf().database, stored, stored.values())


@cache
def _defaults() -> dict[str, Any]:
    """Return the value of each column of a new call that the send does not name."""
    return {field.attname: field.get_default() for field in CallQueue._meta.concrete_fields}


def _keys(call: Call) -> tuple[dict[str, int], dict[str, Policy], object]:
    """Return the cost of each key, the policies that come with the call, and the policy's on_limit."""
    given = call.keys if call.keys is not None else ()
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence | set | frozenset):
        raise CallInvalid("keys", f'{given!r} must be a list of names or {{name: cost}}; for one key give ["name"].')
    costs = {groups.key_name(name): given[name] if isinstance(given, Mapping) else 1 for name in given}
    policies: dict[str, Policy] = {}
    on_limit: object = None
    if call.rate_limit is not None:
        limits = dict(validate.mapping("rate_limit", call.rate_limit) or {})
        name = limits.pop("key", None)
        if name is None:
            raise PolicyInvalid("rate_limit.key", "required: name the key whose limits these are.")
        on_limit = limits.pop("on_limit", None)
        policies[validate.key_name(name)] = Policy.parse(limits, "rate_limit")
        costs.setdefault(name, 1)
    for name, cost in costs.items():
        validate.whole(f"keys[{name!r}]", cost, 1, 2**31 - 1)
    groups.check_apart(costs)
    return costs, policies, on_limit


def _on_limit(value: object) -> OnLimit:
    if value is None:
        return OnLimit.WAIT
    try:
        return OnLimit(value)  # type: ignore[arg-type]
    except ValueError:
        raise CallInvalid("on_limit", f"{value!r} must be one of {', '.join(OnLimit)}.") from None
