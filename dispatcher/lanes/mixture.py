"""Limits per worker and queues that the broker delivers exclude each other: there the worker is unknown before a start.

Raises PolicyInvalid or CallInvalid naming the field and the remedy.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_

from django.db.models import Func, Q, QuerySet

from dispatcher import groups
from dispatcher.conf import is_eager
from dispatcher.errors import CallInvalid, PolicyInvalid
from dispatcher.lanes import Kind, declared_delivery
from dispatcher.limits.policy import Policy
from dispatcher.models import Lane, Queue, RateLimitKey
from dispatcher.states import Delivery

_REMEDY = (
    "the broker chooses the worker, so no limit per worker can be kept; deliver the queue directly or over HTTP, or "
    "limit the key by concurrency"
)


def check_policy(name: str, policy: Policy, field: str = "per_worker") -> None:
    """Refuse a limit per worker for a key that calls of queues delivered by the broker spend, or may choose."""
    if policy.per_worker is None or is_eager():
        return
    own = name.removeprefix("queue:")
    direct = Queue.objects.exclude(delivery=Delivery.BROKER).values("name")
    lanes = Lane.objects.filter(_spends(name)).exclude(queue__in=direct).order_by("queue")
    queue = lanes.values_list("queue", flat=True).first() or next(iter(_published({own} - {name})), None)
    if queue is not None:
        raise PolicyInvalid(field, f"calls of the queue {queue!r} can spend {name!r}, and {_REMEDY}.")


def check_declared(name: str, policy: Policy, field: str) -> None:
    """Refuse that the settings give a queue a limit per worker and the broker; by the settings alone."""
    own = name.removeprefix("queue:")
    if policy.per_worker is not None and own != name and declared_delivery(own) is Delivery.BROKER and not is_eager():
        message = f"DISPATCHER['delivery'] gives the queue {own!r} to the broker, and"
        raise PolicyInvalid(f"{field}.per_worker", f"{message} {_REMEDY}.")


def check_delivery(queue: str) -> None:
    """Refuse that the broker delivers a queue whose calls spend, or may choose, keys with a limit per worker."""
    of_lanes = Lane.objects.filter(queue=queue).annotate(key=Func("key_ids", function="unnest")).values("key")
    spent = RateLimitKey.objects.filter(Q(pk__in=of_lanes) | Q(name=f"queue:{queue}"))
    patterns = spent.filter(is_group=True).values_list("name", flat=True)
    if keys := _limited(Q(name__in=spent.values("name")), patterns)[:1]:
        message = f"calls of {queue!r} spend the key {keys[0]!r}, which has a limit per worker (per_worker), and "
        raise CallInvalid("delivery", f"{message}{_REMEDY}, or remove per_worker from the key first.")


def check_kinds(kinds: Collection[Kind], made: Mapping[str, Policy]) -> None:
    """Refuse calls of queues that the broker delivers under keys with a limit per worker.

    made: the keys that do not exist yet, with their policies.
    """
    if is_eager():
        return
    limited = {name: policy for name, policy in made.items() if policy.per_worker is not None}
    # A key that is made may be the member of a group that other queues spend.
    for name, policy in limited.items():
        check_policy(name, policy)
    published = _published({kind.queue for kind in kinds})
    named = {kind: {*kind.names, kind.queue_key} for kind in kinds if kind.queue in published}
    names = {name for each in named.values() for name in each}
    stored = _limited(Q(name__in=names), filter(groups.is_group, names)) if names else ()
    for kind in named:
        for key in sorted(kind.of(limited | dict.fromkeys(stored, Policy()))):
            message = f"calls of the queue {kind.queue!r} can't spend the key {key!r}, which has a limit per "
            raise CallInvalid("keys", f"{message}worker (per_worker): {_REMEDY}.")


def _spends(name: str) -> Q:
    """Return the condition that calls of a lane spend a key, or may choose it for a group."""
    keys = RateLimitKey.objects.filter(Q(name=name) | Q(is_group=True)).values_list("pk", "name")
    spent = [key for key, each in keys if each == name or groups.has_member(each, name)]
    of_queue = Q(queue=name.removeprefix("queue:")) if name.startswith("queue:") else Q(pk=None)
    # Without such a key no lane is read.
    return of_queue | Q(key_ids__overlap=spent) if spent else of_queue


def _limited(named: Q, patterns: Iterable[str]) -> QuerySet[RateLimitKey, str]:
    """Return the names of the keys with a limit per worker among those named, and among the members of groups."""
    wanted = reduce(or_, (Q(name__startswith=pattern[:-1], is_group=False) for pattern in patterns), named)
    keys = RateLimitKey.objects.exclude(per_worker=None, override_per_worker=None).filter(wanted)
    return keys.order_by("name").values_list("name", flat=True)


def _published(queues: Collection[str]) -> set[str]:
    """Return those of these queues that the broker delivers; one without a row gets it as the settings say."""
    stored = dict(Queue.objects.filter(name__in=queues).values_list("name", "delivery")) if queues else {}
    return {queue for queue in queues if stored.get(queue, declared_delivery(queue)) == Delivery.BROKER}
