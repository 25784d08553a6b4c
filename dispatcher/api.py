"""The public module: what callers and people do with calls and keys. `CallQueue.objects.send` is the short way in."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from celery import current_task

from dispatcher import groups, sql, validate
from dispatcher import lanes as lanes_of
from dispatcher.engine import compose, dispenser, sent
from dispatcher.errors import CallInvalid, ConfigurationError, KeyNotFound, PolicyInvalid
from dispatcher.groups import any_of
from dispatcher.history import By
from dispatcher.lanes import mixture
from dispatcher.lifecycle import control, oversized
from dispatcher.limits.policy import Policy
from dispatcher.messages.tickets import CHOSEN_HEADER, headers_of, ticket_in
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call

__all__ = [
    "Call",
    "Calls",
    "CurrentCall",
    "activate",
    "any_of",
    "block",
    "cancel",
    "count_oversized",
    "current_call",
    "declare",
    "end_override",
    "enforce",
    "limit",
    "observe",
    "override",
    "pause",
    "resume",
    "retry",
    "run_now",
    "send",
    "send_many",
]

Calls = CallQueue | UUID | str | Iterable[CallQueue | UUID | str]
"""Calls as people name them: a call, its id, or several of these. Anything else raises CallInvalid."""
_IN_ONE: Final = dict.fromkeys(
    [each.name for each in fields(Policy)], 'limits are one mapping, such as {"concurrency": 4}.'
)


def send(call: Call) -> CallQueue:
    """Write one call in the caller's transaction, and return it saved. Raises CallInvalid or PolicyInvalid."""
    return send_many([call])[0]


def send_many(calls: Sequence[Call]) -> list[CallQueue]:
    """Write calls, all or none, and serve them after the commit. Raises CallInvalid or PolicyInvalid."""
    drafts = compose.drafts(calls)
    outside = [call for call in calls if call.outside]
    if outside and len(outside) < len(calls):
        raise CallInvalid("outside", "is for all calls that are written together, or for none.")
    with sql.outside() if outside else nullcontext():
        return sent.write(drafts)


@validate.only_named(PolicyInvalid, _IN_ONE)
def declare(name: str, limits: Mapping[str, Any]) -> RateLimitKey:
    """Make a key if it does not exist, and return it as it is stored. Raises PolicyInvalid or CallInvalid.

    One that a template has made is kept from now on, even if it is unused. any_of(pattern) declares a group.
    """
    policies = {groups.key_name(name): Policy.parse(limits)}
    keys = RateLimitKey.objects.filter(name=name)
    # First, so that it is not removed meanwhile.
    with sql.patient(f"the rate limit key {name!r}"):
        is_kept = keys.filter(is_from_template=True).update(is_from_template=False)
    if not is_kept:
        mixture.check_policy(name, policies[name])
    lanes_of.make_keys(policies, is_declared=True)
    return keys.get()


@validate.only_named(PolicyInvalid, _IN_ONE)
def limit(name: str, limits: Mapping[str, Any], *, by: By = "") -> int:
    """Store other limits for a key, in force at once; return how many waiting calls cost more than they ever allow.

    Those wait alone until the limits allow them. A key that is observed stays so unless the limits say otherwise.
    by: who does it, for the history, as in each verb that changes a key.
    Raises PolicyInvalid or KeyNotFound.
    """
    control.limit(name, limits, by=by)
    _limited()
    return count_oversized(name, limits)


def observe(name: str, *, by: By = "") -> None:
    """Let the limits of a key stop nothing from now on; what they would have delayed is counted. Raises KeyNotFound."""
    control.limit(name, {"observe": True}, keeps_others=True, by=by)
    _limited()


def enforce(name: str, *, by: By = "") -> int:
    """Enforce the limits of a key that was observed; return how many waiting calls cost more than they ever allow.

    What runs goes on, and what started counts. Raises KeyNotFound.
    """
    control.limit(name, {"observe": False}, keeps_others=True, by=by)
    _limited()
    return count_oversized(name, {}, keeps_others=True)


@validate.only_named(PolicyInvalid, _IN_ONE)
def count_oversized(name: str, limits: Mapping[str, Any], *, keeps_others: bool = False) -> int:
    """Return how many waiting calls cost more of a key than these limits would ever allow, and change nothing.

    Among the first 100,000 that wait. keeps_others: strategies not named stay as they are, as in an override. Raises
    PolicyInvalid or KeyNotFound.
    """
    return oversized.count(name, limits, keeps_others=keeps_others)


def pause(name: str, *, by: By = "") -> None:
    """Let nothing start under a key until it is resumed. Raises KeyNotFound."""
    control.pause(name, by=by)


def resume(name: str, *, by: By = "") -> None:
    """Let a key's calls start again, after a pause or a block. Raises KeyNotFound."""
    control.resume(name, by=by)
    _soon()


def block(name: str, wait: timedelta | float | str, *, by: By = "") -> None:
    """Let nothing start under a key for this long; a longer block stands. Raises PolicyInvalid or KeyNotFound.

    wait: a timedelta, seconds or ISO 8601.
    """
    if not control.block(wait, names=[name], by=by):
        raise KeyNotFound(name, lanes_of.known_names())


def override(name: str, *, until: datetime, by: By = "", **limits: Any) -> int:
    """Put other limits (concurrency, rate, throttle) in force until a time; those not named stay as they are.

    Return how many waiting calls cost more than they ever allow. Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    control.override(name, limits, until, by=by)
    _limited()
    return count_oversized(name, limits, keeps_others=True)


def end_override(name: str, *, by: By = "") -> int:
    """Put a key's own limits in force again; return how many waiting calls cost more than they ever allow."""
    ended = control.end_override(name, by=by)
    _limited()
    return count_oversized(name, {}, keeps_others=True) if ended else 0


def cancel(calls: Calls) -> list[UUID]:
    """End calls that have not started, and return their ids; those that run, or have ended, are left as they are."""
    done = control.cancel(validate.call_ids(calls))
    _soon()
    return done


def retry(calls: Calls) -> list[UUID]:
    """Let ended calls wait again from attempt 0, and return their ids."""
    return _moved(control.retry(validate.call_ids(calls)))


def activate(calls: Calls) -> list[UUID]:
    """Let calls that were sent as pending wait for their turn, and return their ids."""
    return _moved(control.activate(validate.call_ids(calls)))


def run_now(calls: Calls) -> list[UUID]:
    """Move calls to the front of their lanes, whatever time they were sent for; return their ids. Limits still hold."""
    return _moved(control.run_now(validate.call_ids(calls)))


@dataclass(frozen=True, kw_only=True)
class CurrentCall:
    """The call that a task runs for."""

    id: UUID
    chosen_keys: Mapping[str, str] = field(default_factory=dict)
    """The key that was chosen for this attempt, by the pattern of each `any_of`."""

    @property
    def key(self) -> str | None:
        """The key that was chosen for this attempt; None for a call without `any_of`.

        Raises ConfigurationError for a call with several of them.
        """
        if len(self.chosen_keys) > 1:
            message = f"the call has several any_of: read chosen_keys[pattern], of {', '.join(self.chosen_keys)}."
            raise ConfigurationError(message)
        return next(iter(self.chosen_keys.values()), None)


def current_call() -> CurrentCall | None:
    """Return the call that the current task runs for; None outside of one, or if it came without the dispatcher."""
    request = current_task.request if current_task else None
    if request is None or request.called_directly:
        return None
    headers = headers_of(request)
    if ticket_in(headers, request.id) is None:
        return None
    return CurrentCall(id=UUID(request.id), chosen_keys=headers.get(CHOSEN_HEADER) or {})


def _limited() -> None:
    """Serve keys whose limits have changed, after the commit; first let go on what waited alone and fits now."""
    sql.after_commit(dispenser.serve_limited)


def _moved(moved: Sequence[CallQueue]) -> list[UUID]:
    sent.after_commit(moved)
    return [row.id for row in moved]


def _soon() -> None:
    """Dispense at once, or when the caller's transaction has committed: until then no trip reads its notes."""
    sql.after_commit(dispenser.dispense_briefly)
