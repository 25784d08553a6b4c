"""Send: write calls into their lanes, in the caller's own transaction."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import uuid_utils.compat as uuid7

from dispatcher import groups, lanes, sql, validate
from dispatcher.conf import conf, feed_silence, is_eager, needs_worker, send_bound
from dispatcher.errors import CallInvalid, CallNeverRuns, CallTooLarge, PolicyInvalid
from dispatcher.extension import registered
from dispatcher.lanes import Kind, Placement, heads, mixture
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
    args: str
    kwargs: str
    call_data: str | None
    meta: str
    costs: Mapping[str, int]
    retry: str | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    policies: Mapping[str, Policy]
    extras: Extras | None
    beside: str | None
    """What another app stores beside it, as far as it counts as a part of the call."""
    headers: str | None
    options: str | None
    scheduled_in: timedelta | None
    expires_in: timedelta | None


_direct: set[str] = set()
"""The direct queues that this process has sent to."""
_full: set[str] = set()
"""The other queues to which the last call that this process sent alone had to wait."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A row as the database wrote it; with a ticket if it was admitted at once."""

    id: UUID
    position: int
    lane_id: int | None
    state: str
    created_at: datetime
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    ticket: UUID | None = None
    dispatched_at: datetime | None = None
    is_direct: bool = False


@dataclass(frozen=True, kw_only=True)
class _Held:
    keys: list[int]
    is_unnoticed: bool
    durability: str


@dataclass(frozen=True, kw_only=True)
class One:
    """A call that was sent alone; is_served: all is done but for `keys` and `unnoticed`.

    keys: those to dispense. unnoticed: the queue, if it holds the lane now and no worker of it was idle. changed: where
    a pass is wanted, if that was asked already.
    """

    call: CallQueue
    is_served: bool = False
    keys: Sequence[int] = ()
    unnoticed: Sequence[str] = ()
    changed: heads.Changed | None = None


def draft(
    call: Call,
    *,
    task: str,
    queue: str,
    options: Mapping[str, Any] | None = None,
    scheduled_in: timedelta | None = None,
    expires_in: timedelta | None = None,
    call_id: UUID | None = None,
) -> Draft:
    """Check every field of a call. Raises CallInvalid or PolicyInvalid naming the field; nothing is written.

    options, scheduled_in, expires_in: see signature.SendRequest. call_id: its id, if it has one already.
    """
    costs, policies, on_limit = _keys(call)
    names = tuple(sorted(costs))
    # Only Celery's own JSON has types beyond JSON's that come back as they were.
    is_json = "serializer" not in (options or {})
    checked = Draft(
        id=call_id or (call.extras and call.extras.id) or uuid7.uuid7(),
        kind=Kind(
            queue=validate.name("queue", queue),
            priority=validate.whole("priority", call.priority, -100, 100),
            on_limit=_on_limit(call.on_limit if call.on_limit is not None else on_limit),
            names=names,
        ),
        task=validate.name("task", task),
        args=validate.json_text("args", validate.sequence("args", call.args), has_celerys=is_json),
        kwargs=validate.json_text("kwargs", validate.mapping("kwargs", call.kwargs) or {}, has_celerys=is_json),
        call_data=None
        if call.call_data is None
        else validate.json_text("call_data", validate.mapping("call_data", call.call_data)),
        meta=validate.json_text("meta", validate.mapping("meta", call.meta) or {}),
        costs={name: cost for name, cost in costs.items() if cost != 1},
        retry=None if call.retry is None else json.dumps(Retry.parse(call.retry).as_json()),
        scheduled_at=validate.moment("scheduled_at", call.scheduled_at),
        expires_at=validate.moment("expires_at", call.expires_at),
        policies=policies,
        extras=call.extras,
        beside=None if call.extras is None else call.extras.text(),
        headers=validate.json_text("headers", dict(call.headers)) if call.headers else None,
        options=validate.json_text("options", dict(options)) if options else None,
        scheduled_in=scheduled_in,
        expires_in=expires_in,
    )
    if checked.scheduled_at and checked.expires_at and checked.expires_at <= checked.scheduled_at:
        raise CallInvalid("expires_at", "is not after scheduled_at, so the call could never start.")
    others = (checked.call_data, checked.headers, checked.beside)
    check_size((checked.args, checked.kwargs, checked.meta, *(text for text in others if text)))
    return checked


def check_size(texts: Iterable[str]) -> None:
    """Check how much all texts of a call take together. Raises CallTooLarge."""
    size = sum(len(text.encode()) for text in texts)
    if size > conf().max_payload_bytes:
        raise CallTooLarge(
            "args",
            f"all fields of the call take {size} bytes as JSON together, over max_payload_bytes "
            f"({conf().max_payload_bytes}); store the content elsewhere and send a reference to it.",
        )


def write(drafts: Sequence[Draft]) -> list[CallQueue]:
    """Write checked calls, in order. Raises UnknownKey or CallNeverRuns, then nothing was written.

    Keys and lanes that do not exist are made before, in a transaction of their own. Within a caller's transaction, and
    where another one is in the way, the calls are written without a lane: `place` gives them theirs after the commit.
    """
    if not drafts:
        return []
    _check_costs(drafts)
    _check_expiry(drafts)
    policies = [given for each in drafts for given in each.policies.items()]
    _report_ignored(policies)
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(each.kind for each in drafts))}
    placements: dict[Kind, Placement] = {}
    rows = _insert(drafts, kinds)
    if not rows:
        missing = lanes.missing_keys(kinds, dict(reversed(policies)))
        mixture.check_kinds(kinds, missing)
        senders = {
            name: by
            for each in reversed(drafts)
            for name in each.policies
            if each.extras is not None and (by := each.extras.sender) is not None
        }
        placements = {kind: Placement.of(kind, missing, senders) for kind in kinds}
        if not sql.in_transaction() and lanes.open_lanes(kinds, missing, senders):
            rows = _insert(drafts, kinds)
    if not rows:
        rows = _insert(drafts, kinds, placements)
    written = {row.id: row for row in rows}
    return [_saved(each, written[each.id], placements.get(each.kind)) for each in drafts]


def write_one(draft: Draft) -> One:
    """Write one checked call in a transaction of its own.

    It is admitted at once if nothing stands in its way. One of a direct queue lets an idle worker know, in the same
    trip. Raises UnknownKey or CallNeverRuns, then nothing was written.
    """
    has_times = any((draft.scheduled_at, draft.expires_at, draft.scheduled_in, draft.expires_in))
    has_group = any(groups.is_group(name) for name in draft.kind.names)
    if draft.costs or draft.policies or has_times or has_group or draft.extras is not None:
        return One(call=write([draft])[0])
    params = _params(draft)
    if draft.kind.queue in _direct and not is_eager() and (one := _record(draft, params)) is not None:
        return one
    row, changed = _send(draft, params)
    if row is None:
        return One(call=write([draft])[0])
    if row.is_direct:
        _direct.add(draft.kind.queue)
    if row.ticket is None:
        _full.add(draft.kind.queue)
    else:
        _full.discard(draft.kind.queue)
    return One(call=_saved(draft, row), changed=changed)


def _send(draft: Draft, params: Mapping[str, Any]) -> tuple[Written | None, heads.Changed | None]:
    """Write a call, admitted if nothing stands in its way; where it will wait, look in the same trip what it wants."""
    if draft.kind.queue not in _full or not conf().pipeline:
        return next(iter(sql.fetch("send_call", Written, params)), None), None
    try:
        with sql.one_trip() as commit:
            written = sql.ask("send_call", Written, params)
            commit()
            sql.tune()
            changed = heads.ask_changed(draft.id)
    except sql.DATABASE_ERRORS as fault:
        # As in `_record`; then the lane is looked at in a trip of its own.
        if sql.sqlstate(fault) is None or not (rows := written.rows()):
            raise
        return rows[0], None
    rows = written.rows()
    return (rows[0], changed.row()) if rows else (None, None)


def _record(draft: Draft, params: Mapping[str, Any]) -> One | None:
    """Write a call of a direct queue; None if nothing was written: the queue is not direct any more, say."""
    try:
        with sql.one_trip() as commit:
            written = sql.ask("record_call", Written, params)
            commit()
            held = sql.ask("wake_for_call", _Held, {"id": draft.id, "silence": feed_silence()})
    except sql.DATABASE_ERRORS as fault:
        # An error of the server's after the call's row has come is that of the second statement: the call is committed.
        if sql.sqlstate(fault) is None or not (rows := written.rows()):
            raise
        logger.exception("call %s was sent, but no worker was woken; its lane is looked at again", draft.id)
        return One(call=_saved(draft, rows[0]))
    if not (rows := written.rows()):
        _direct.discard(draft.kind.queue)
        return None
    wake = held.row()
    unnoticed = [draft.kind.queue] if wake.is_unnoticed else ()
    return One(call=_saved(draft, rows[0]), is_served=True, keys=wake.keys, unnoticed=unnoticed)


def _params(draft: Draft) -> dict[str, Any]:
    settings = conf()
    return {
        "id": draft.id,
        "names": list(draft.kind.names),
        "queue": draft.kind.queue,
        "priority": draft.kind.priority,
        "on_limit": draft.kind.on_limit.value,
        **{
            name: getattr(draft, name)
            for name in ("task", "args", "kwargs", "call_data", "meta", "headers", "options", "retry")
        },
        "margin": settings.margin,
        "ramp": settings.ramp,
        "lease": settings.dispatch_lease,
        "needs_worker": needs_worker(),
        "ahead": send_bound(settings),
    }


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
    """Refuse calls that have expired by the database's clock; over HTTP such a job is discarded, as its spec has it."""
    times = [each.expires_at for each in drafts if each.expires_at is not None and each.beside is None]
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
    drafts: Sequence[Draft], kinds: Mapping[Kind, int], placements: Mapping[Kind, Placement] | None = None
) -> list[Written]:
    """Write the rows; without placements none if a lane is missing, with them those of such a lane without one."""
    params = {
        "kinds": lanes.kinds_json(kinds, placements),
        "may_defer": placements is not None,
        "is_eager": is_eager(),
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
                "scheduled_in",
                "expires_in",
                "headers",
                "options",
            )
        },
        "is_pending": [each.extras is not None and each.extras.is_pending for each in drafts],
    }
    extras = {each.id: each.extras for each in drafts if each.extras is not None and each.extras.is_stored}
    if not extras:
        return sql.fetch("send_calls", Written, params)
    with sql.together():
        written = sql.ask("send_calls", Written, params)
        registered().store_extras(extras)
    return written.rows()


def _saved(each: Draft, row: Written, placement: Placement | None = None) -> CallQueue:
    call = CallQueue(
        id=row.id,
        position=row.position,
        lane_id=row.lane_id,
        placement=placement.as_json() if placement is not None and row.lane_id is None else None,
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
        scheduled_at=row.scheduled_at,
        expires_at=row.expires_at,
        headers=each.headers and json.loads(each.headers),
        options=each.options and json.loads(each.options),
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
