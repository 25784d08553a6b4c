"""Limits per worker and queues that the broker delivers exclude each other: there the worker is unknown before a start.

Raises PolicyInvalid or CallInvalid naming the field and the remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatcher import sql
from dispatcher.conf import is_eager
from dispatcher.errors import CallInvalid, PolicyInvalid
from dispatcher.lanes import Kind, declared_delivery
from dispatcher.limits.policy import Policy
from dispatcher.states import Delivery

_REMEDY = (
    "the broker chooses the worker, so no limit per worker can be kept; deliver the queue directly or over HTTP, or "
    "limit the key by concurrency"
)


@dataclass(frozen=True, kw_only=True)
class _Mixed:
    queue: str
    key: str
    is_stored: bool


def check_policy(name: str, policy: Policy, field: str = "per_worker") -> None:
    """Refuse a limit per worker for a key that calls of queues delivered by the broker spend, or may choose."""
    if policy.per_worker is None or is_eager():
        return
    queues = sql.fetch("published_spenders", str, {"key": name})
    if not queues and (own := name.removeprefix("queue:")) != name:
        queues = [found.queue for found in _mixed([(own, name)], made=[name])]
    if queues:
        raise PolicyInvalid(field, f"calls of the queue {queues[0]!r} can spend {name!r}, and {_REMEDY}.")


def check_declared(name: str, policy: Policy, field: str) -> None:
    """Refuse that the settings give a queue a limit per worker and the broker; by the settings alone."""
    own = name.removeprefix("queue:")
    if policy.per_worker is not None and own != name and declared_delivery(own) is Delivery.BROKER and not is_eager():
        message = f"DISPATCHER['delivery'] gives the queue {own!r} to the broker, and"
        raise PolicyInvalid(f"{field}.per_worker", f"{message} {_REMEDY}.")


def check_delivery(queue: str) -> None:
    """Refuse that the broker delivers a queue whose calls spend, or may choose, keys with a limit per worker."""
    if keys := sql.fetch("keys_per_worker", str, {"queue": queue}):
        message = f"calls of {queue!r} spend the key {keys[0]!r}, which has a limit per worker (per_worker), and "
        raise CallInvalid("delivery", f"{message}{_REMEDY}, or remove per_worker from the key first.")


def check_kinds(kinds: Iterable[Kind], made: Mapping[str, Policy]) -> None:
    """Refuse calls of queues that the broker delivers under keys with a limit per worker.

    made: the keys that do not exist yet, with their policies.
    """
    if is_eager():
        return
    limited = {name: policy for name, policy in made.items() if policy.per_worker is not None}
    # A key that is made may be the member of a group that other queues spend.
    for name, policy in limited.items():
        check_policy(name, policy)
    named = [(kind.queue, name) for kind in kinds for name in {*kind.names, kind.queue_key, *kind.of(limited)}]
    for found in _mixed(named, made=list(limited)):
        message = f"calls of the queue {found.queue!r} can't spend the key {found.key!r}, which has a limit per "
        raise CallInvalid("keys", f"{message}worker (per_worker): {_REMEDY}.")


def _mixed(named: Sequence[tuple[str, str]], *, made: Sequence[str]) -> list[_Mixed]:
    """Return those of these (queue, key) that exclude each other; made: keys to be made with a limit per worker."""
    queues, keys = [queue for queue, _ in named], [key for _, key in named]
    found = sql.fetch("mixed_kinds", _Mixed, {"queues": queues, "keys": keys, "made": made})
    # A queue without a row gets one with its first lane, as the settings say.
    return [each for each in found if each.is_stored or declared_delivery(each.queue) is Delivery.BROKER]
