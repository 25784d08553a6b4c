"""Limits per worker and queues that the broker delivers exclude each other: there the worker is unknown before a start.

Raises PolicyInvalid or CallInvalid naming the field and the remedy.
"""

from collections.abc import Iterable, Mapping
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
    """Refuse a limit per worker for a key that calls of queues delivered by the broker spend."""
    if policy.per_worker is None or is_eager():
        return
    if queues := sql.fetch("published_spenders", str, {"key": name}):
        raise PolicyInvalid(field, f"calls of the queue {queues[0]!r} spend {name!r}, and {_REMEDY}.")


def check_delivery(queue: str) -> None:
    """Refuse that the broker delivers a queue whose calls spend keys with a limit per worker."""
    if keys := sql.fetch("keys_per_worker", str, {"queue": queue}):
        message = f"calls of {queue!r} spend the key {keys[0]!r}, which has a limit per worker (per_worker), and "
        raise CallInvalid("delivery", f"{message}{_REMEDY}, or remove per_worker from the key first.")


def check_kinds(kinds: Iterable[Kind], made: Mapping[str, Policy]) -> None:
    """Refuse calls of queues that the broker delivers under keys with a limit per worker.

    made: the keys that do not exist yet, with their policies.
    """
    if is_eager():
        return
    named = [(kind.queue, name) for kind in kinds for name in (*kind.names, kind.queue_key)]
    params = {
        "queues": [queue for queue, _ in named],
        "keys": [name for _, name in named],
        "made": [name for name, policy in made.items() if policy.per_worker is not None],
    }
    for found in sql.fetch("mixed_kinds", _Mixed, params):
        # A queue without a row gets one with its first lane, as the settings say.
        if found.is_stored or declared_delivery(found.queue) is Delivery.BROKER:
            message = f"calls of the queue {found.queue!r} can't spend the key {found.key!r}, which has a limit per "
            raise CallInvalid("keys", f"{message}worker (per_worker): {_REMEDY}.")
