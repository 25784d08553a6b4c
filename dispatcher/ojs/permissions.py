"""Who may send what: to which queues, whose keys a job may name, and what the sender sees of a job."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from dispatcher.errors import PolicyInvalid
from dispatcher.limits.policy import Policy
from dispatcher.models import CallQueue
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import Wanted
from dispatcher.ojs.job import write_job
from dispatcher.ojs.wire import Problem, invalid

_RESERVED: Final = ("token:", "queue:", "webhook:", "cron:")
"""How the keys begin that the dispatcher makes for its own purposes."""
_LONGEST_PERIOD: Final = timedelta(days=1)


def need_to_send(access: Access, wanted: Mapping[str, Wanted]) -> None:
    """Raise Problem unless all these calls, each after the path of its job, may be sent.

    The keys of tokens, webhooks, crons and other queues are for `admin`: who may limit or spend them could stop what
    is not theirs.
    """
    access.need("send", *{each.queue for each in wanted.values()})
    if access.allows("admin"):
        return
    for path, each in wanted.items():
        for field, key in _named(each):
            if key.startswith(_RESERVED) and key != f"queue:{each.queue}":
                message = f"{path}{field}: {key!r} limits what is not the job's; only the scope admin may name it."
                raise Problem(403, "permission_denied", message, details={"field": f"{path}{field}"})
        for field, problem in _stops(each):
            raise invalid(f"{path}options.rate_limit.{field}", problem)


def sent_by(sender: str, wanted: Wanted) -> Wanted:
    """Return the call with who sends it, for the history of the keys that it makes."""
    return replace(wanted, call=replace(wanted.call, more=replace(wanted.call.more, sender=sender)))


def seen(access: Access, call: CallQueue) -> dict[str, Any]:
    """Write a job that was there before. It may be another sender's: without `read` only what it is and its state."""
    written = write_job(call)
    if access.allows("read", call.queue):
        return written
    return {name: written[name] for name in ("id", "type", "queue", "state")}


def _named(each: Wanted) -> Iterator[tuple[str, str]]:
    """Return the keys that a call names, each after its field."""
    if (key := (each.call.rate_limit or {}).get("key")) is not None:
        yield "options.rate_limit.key", key
    for key in each.call.keys or ():
        yield "options.keys", key


def _stops(each: Wanted) -> Iterator[tuple[str, str]]:
    """Return how a call's policy could stop its key, each after the field; a policy that is wrong is refused later."""
    limits = {name: value for name, value in (each.call.rate_limit or {}).items() if name not in ("key", "on_limit")}
    with suppress(PolicyInvalid):
        policy = Policy.parse(limits)
        if policy.concurrency == 0:
            yield "concurrency", "must be 1 at the least; only the scope admin may stop a key."
        for name, rate in (("rate", policy.rate), ("throttle", policy.throttle)):
            if rate is not None and rate.period > _LONGEST_PERIOD:
                yield f"{name}.period", "must be one day at the most; only the scope admin may set a longer one."
