"""Lanes: make the keys and lanes that calls need and that do not exist yet, in transactions of the engine's own.

Never in a caller's transaction: others that need a key which it inserted would wait for its end.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from django.db import OperationalError
from django.db.models import F, Func, QuerySet

from dispatcher import groups, limited, sql, validate
from dispatcher.conf import conf
from dispatcher.errors import ConfigurationError, UnknownKey
from dispatcher.extension import HTTP_MISSING, registered
from dispatcher.limits.policy import Policy, stored
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey, Worker
from dispatcher.states import Delivery, OnLimit

_MOST_NAMES: Final = 10_000

LOCK_WAIT: Final = timedelta(milliseconds=100)
"""How long keys and lanes may wait for a transaction of somebody else that has made the same ones."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What calls of one lane share; the keys by name."""

    queue: str
    priority: int
    on_limit: OnLimit
    names: tuple[str, ...]

    @property
    def queue_key(self) -> str:
        """The name of the key that counts for all calls of the queue, if it exists."""
        return f"queue:{self.queue}"

    def of(self, policies: Mapping[str, Policy]) -> dict[str, Policy]:
        """Return those of these keys that the calls spend or may spend."""
        named = {*self.names, self.queue_key}
        patterns = [name for name in self.names if groups.is_group(name)]
        return {
            name: policy
            for name, policy in policies.items()
            if name in named or any(groups.has_member(pattern, name) for pattern in patterns)
        }


def kind_of(call: CallQueue) -> Kind:
    """Return what the calls of a call's lane share; without keys where it has no lane."""
    lanes = Lane.objects.filter(id=call.lane_id or 0)
    keys = RateLimitKey.objects.filter(id__in=lanes.values_list(Func(F("key_ids"), function="unnest"), flat=True))
    names = tuple(sorted(keys.values_list("name", flat=True)))
    return Kind(queue=call.queue, priority=call.priority, on_limit=OnLimit(call.on_limit), names=names)


Placement = Mapping[str, Any]
"""What makes the keys and the lane of a call that was written without a lane, as it is stored.

names: the keys that it names; policies: of those that did not exist at the send; senders: who made which over HTTP.
"""


def placement_of(kind: Kind, missing: Mapping[str, Policy], senders: Mapping[str, str]) -> Placement:
    """Return what a call of this kind needs of the missing keys."""
    policies = {name: policy.as_json() for name, policy in kind.of(missing).items()}
    made = {name: senders[name] for name in policies if name in senders}
    return {"names": list(kind.names), "policies": policies, "senders": made}


def declared_policy(name: str) -> Policy | None:
    """Return the policy that the settings declare for a key, exactly or by the longest template that fits.

    Without one, that of the task whose rate limit the key is. A group has no limits until a person gives it some.
    """
    if groups.is_group(name):
        return Policy()
    best = declared_by(name)
    if best is not None:
        return Policy.parse(conf().keys[best], f"DISPATCHER['keys'][{best!r}]")
    limits = limited.rate_limit_of(name)
    return None if limits is None else Policy.parse(limits, "rate_limit")


def declared_by(name: str) -> str | None:
    """Return the name in the settings that declares a key: its own, or the longest template that fits."""
    return _best(name, conf().keys)


def _best(name: str, names: Collection[str]) -> str | None:
    """Return the exact name, or the longest template that fits."""
    if name in names:
        return name
    return max((each for each in names if "*" in each and fnmatchcase(name, each)), key=len, default=None)


def declared_delivery(queue: str) -> Delivery:
    """Return the delivery that the settings give a queue, exactly or by the longest template that fits; else direct."""
    given = conf().delivery
    best = _best(queue, given)
    if best is None:
        return Delivery.DIRECT
    if given[best] not in list(Delivery):
        message = f"DISPATCHER['delivery'][{best!r}] is {given[best]!r}: give one of {', '.join(Delivery)}."
        raise ConfigurationError(message)
    if given[best] == Delivery.HTTP and not registered().serves_http:
        message = f"DISPATCHER['delivery'][{best!r}] is {given[best]!r}, but {HTTP_MISSING}"
        raise ConfigurationError(message)
    return Delivery(given[best])


def open_queue(name: str) -> None:
    """Make the row of a queue that is named for the first time, over HTTP or by a worker of Celery's.

    Workers may fetch its calls, unless a worker of Celery's serves it, or calls were sent to it from Python. Until a
    worker does, it is undecided: a worker of Celery's that comes first serves it (see record_heartbeat).
    """
    is_celerys = Worker.objects.filter(queues__contains=[name]).exists() or Lane.objects.filter(queue=name).exists()
    delivery = declared_delivery(name) if is_celerys else Delivery.HTTP
    made = Queue(name=name, delivery=delivery, is_undecided=not is_celerys)
    with sql.atomic():
        Queue.objects.bulk_create([made], ignore_conflicts=True)


def is_from_template(name: str) -> bool:
    """Return whether a template of the settings, and not the exact name, makes this key; or it is a group."""
    return groups.is_group(name) or (name not in conf().keys and declared_policy(name) is not None)


def unknown_keys(names: set[str]) -> set[str]:
    """Return those of these keys that do not exist, and that no setting makes; and groups without a member."""
    return _unknown(names - set(stored_policies(names)))


def _unknown(absent: Iterable[str]) -> set[str]:
    return {
        name for name in absent if declared_policy(name) is None or (groups.is_group(name) and not has_members(name))
    }


def has_members(group: str) -> bool:
    """Return whether a key exists that a group could choose, or the settings declare one by its name."""
    return bool(_declared_members(group)) or _members(group).exists()


def member_names(patterns: Iterable[str]) -> list[str]:
    """Return the names of the keys that these groups could choose."""
    return [name for pattern in patterns for name in _members(pattern).values_list("name", flat=True)]


def member_policies(group: str) -> list[Policy]:
    """Return the stored policies of the keys that a group could choose; the settings' if there are none."""
    found = [stored(key) for key in _members(group)]
    return found or [policy for name in _declared_members(group) if (policy := declared_policy(name)) is not None]


def _members(group: str) -> QuerySet[RateLimitKey]:
    return RateLimitKey.objects.filter(name__startswith=group[:-1], is_group=False)


def _declared_members(group: str) -> list[str]:
    return [name for name in conf().keys if groups.has_member(group, name)]


def missing_keys(kinds: Iterable[Kind], given: Mapping[str, Policy]) -> dict[str, Policy]:
    """Return the keys of these kinds that do not exist, with their policies: those given first, then the settings'.

    With a group that does not exist come the members that the settings name. Raises UnknownKey. A missing key of a
    queue counts only if it is given or declared.
    """
    kinds = list(kinds)
    named = {name for kind in kinds for name in kind.names}
    members = {member for name in named if groups.is_group(name) for member in _declared_members(name)}
    wanted = named | members | {kind.queue_key for kind in kinds}
    absent = sorted(wanted - set(stored_policies(wanted)))
    if unknown := sorted(
        name
        for name in _unknown(named.intersection(absent))
        if name not in given and not any(groups.has_member(name, each) for each in given)
    ):
        raise UnknownKey(unknown, known_names())
    return {name: policy for name in absent if (policy := given.get(name) or declared_policy(name)) is not None}


def known_names() -> list[str]:
    """Return the names of the keys that exist, 10,000 at the most, and of those that the settings make."""
    names = RateLimitKey.objects.order_by("name").values_list("name", flat=True)
    return [*conf().keys, *names[:_MOST_NAMES]]


def stored_policies(names: Iterable[str]) -> dict[str, Policy]:
    """Return the stored policies of those of these keys that exist."""
    if not (wanted := list(names)):
        return {}  # Django would make a statement before it finds that it need not run it
    return {key.name: stored(key) for key in RateLimitKey.objects.filter(name__in=wanted)}


def make_keys(
    policies: Mapping[str, Policy], *, is_declared: bool = False, senders: Mapping[str, str] | None = None
) -> None:
    """Make the keys that do not exist; a stored policy is never changed. Raises CallInvalid for a bad name.

    is_declared: a person or a setting names them, so they stay; without it those that are as their template makes them
    are removed when they are unused (see lifecycle.unused). senders: who gave which policy over HTTP, for the history.
    """
    if not policies:
        return
    for name in policies:
        if not groups.is_group(name):
            validate.key_name(name)
    sql.ask(
        "make_keys",
        object,
        {
            "name": list(policies),
            **{column: [policy.columns()[column] for policy in policies.values()] for column in Policy().columns()},
            "is_from_template": [
                not is_declared and is_from_template(name) and policy == declared_policy(name)
                for name, policy in policies.items()
            ],
            "sender": [(senders or {}).get(name) for name in policies],
            "policy": [json.dumps(policy.as_json()) for policy in policies.values()],
        },
    )


def make_lanes(kinds: Mapping[Kind, int]) -> None:
    """Make the lanes of these kinds that do not exist; all of their keys do."""
    deliveries = {kind.queue: declared_delivery(kind.queue) for kind in kinds}
    named = {queue: delivery for queue, delivery in deliveries.items() if delivery is not Delivery.BROKER}
    # Without a row the broker delivers; one that exists is never changed here.
    queues = {"queues": list(named), "deliveries": [delivery.value for delivery in named.values()]}
    sql.ask("make_lanes", object, {"kinds": kinds_json(kinds), **queues})


def open_lanes(
    kinds: Mapping[Kind, int], missing: Mapping[str, Policy], senders: Mapping[str, str] | None = None
) -> None:
    """Make these keys and lanes in a transaction of their own; none if another transaction is in the way."""
    try:
        with sql.own_transaction(lock_wait=LOCK_WAIT):
            make_keys(missing, senders=senders)
            make_lanes(kinds)
    except OperationalError as fault:
        if not sql.is_locked(fault):
            raise


def kinds_json(
    kinds: Mapping[Kind, int],
    placements: Mapping[Kind, Placement] | None = None,
    soonest: Mapping[Kind, datetime] | None = None,
) -> str:
    """Write kinds for the statements, each by its number; with what makes the lanes that are missing, if given.

    soonest: for send_calls, when the first call of each kind may start.
    """
    return json.dumps(
        [
            {
                "number": number,
                **vars(kind),
                "placement": placements[kind] if placements else None,
                "soonest": soonest[kind].isoformat() if soonest else None,
            }
            for kind, number in kinds.items()
        ]
    )
