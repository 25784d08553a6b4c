"""What a token may send: to which queues, with which keys; and which fields of a job it may see."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from dispatcher.errors import PolicyInvalid
from dispatcher.groups import has_member, is_group
from dispatcher.limits.policy import Policy
from dispatcher.models import CallQueue
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import EnqueueRequest
from dispatcher.ojs.job import write_job
from dispatcher.ojs.wire import Problem, invalid

_RESERVED: Final = ("token:", "queue:", "webhook:", "cron:")
"""Prefixes of keys that the dispatcher manages."""
_LONGEST_PERIOD: Final = timedelta(days=1)


def require_send(access: Access, wanted: Mapping[str, EnqueueRequest]) -> None:
    """Raise Problem unless all these calls, by the path of each job in the request, may be sent.

    Keys of tokens, webhooks, crons and other queues need the scope `admin`, and without `send` on all queues any key
    needs a scope of its own: a sender with access to them could stop the work of others.
    """
    access.require("send", *{each.queue for each in wanted.values()})
    if access.allows("admin"):
        return
    for path, each in wanted.items():
        for field, key in _named_keys(each):
            if _is_reserved(key) and key != f"queue:{each.queue}":
                _refuse(f"{path}{field}", f"{key!r} limits more than this job; only the scope admin may name it.")
            if key != f"queue:{each.queue}" and not access.names(key):
                _refuse(
                    f"{path}{field}", f"{key!r} is not among the keys of these credentials: add the scope key:{key}."
                )
        for field, problem in _stopping_limits(each):
            raise invalid(f"{path}options.rate_limit.{field}", problem)


def visible_job(access: Access, call: CallQueue) -> dict[str, Any]:
    """Return an existing job as JSON: without `read`, which another sender's job needs, only its type and state."""
    written = write_job(call)
    if access.allows("read", call.queue):
        return written
    return {name: written[name] for name in ("id", "type", "queue", "state")}


def _refuse(field: str, problem: str) -> None:
    raise Problem(403, "permission_denied", f"{field}: {problem}", details={"field": field})


def _named_keys(each: EnqueueRequest) -> Iterator[tuple[str, str]]:
    """Return the keys that a call names, each after its field."""
    if (key := (each.call.rate_limit or {}).get("key")) is not None:
        yield "options.rate_limit.key", key
    for key in each.call.keys or ():
        yield "options.keys", key


def _is_reserved(key: str) -> bool:
    """Return whether a name is that of a key that the dispatcher manages, or a pattern that matches such names."""
    return key.startswith(_RESERVED) or (is_group(key) and any(has_member(key, prefix) for prefix in _RESERVED))


def _stopping_limits(each: EnqueueRequest) -> Iterator[tuple[str, str]]:
    """Return how a call's policy could stop its key, each after the field; an invalid policy is refused later."""
    limits = {name: value for name, value in (each.call.rate_limit or {}).items() if name not in ("key", "on_limit")}
    with suppress(PolicyInvalid):
        policy = Policy.parse(limits)
        if policy.concurrency == 0:
            yield "concurrency", "must be at least 1; only the scope admin may stop a key."
        for name, rate in (("rate", policy.rate), ("throttle", policy.throttle)):
            if rate is not None and rate.period > _LONGEST_PERIOD:
                yield f"{name}.period", "must be at most one day; only the scope admin may set a longer one."
