"""The job format: parse a job into a call, and render a call's row as a job (ojs-core, ojs-json-format)."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher.conf import conf
from dispatcher.errors import PolicyInvalid
from dispatcher.groups import any_of, is_group
from dispatcher.limits.durations import parse_duration
from dispatcher.limits.retry import Retry
from dispatcher.models import CallQueue
from dispatcher.ojs.enqueue import EnqueueRequest, Unique, ojs_state
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.jobs import OjsOptions, job_of
from dispatcher.ojs.requests import UNIQUE_FIELDS, JobIn, OptionsIn, RateLimitIn, RetryIn, UniqueIn
from dispatcher.ojs.wire import Problem, format_time, invalid, parse_time, without_nulls
from dispatcher.request import Call
from dispatcher.states import Reason, State

MAX_META_BYTES: Final = 65_536

_SYSTEM: Final = {
    *("state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at"),
    *("discarded_at", "error", "errors", "result", "ticket", "next_attempt_at", "retry_delay_ms", "progress"),
    *("specversion", "reason", "workflow_id", "parent_results", "chosen_keys", "why_waiting"),
}
"""Fields that the server sets; clients' values are ignored (ojs-core, section 6)."""
_UNITS = {"second": "PT1S", "minute": "PT1M", "hour": "PT1H", "day": "P1D"}
_UNIQUE_STATES = ("available", "active", "scheduled", "retryable", "pending")
_KINDS = {"LeaseLapsed": "visibility_timeout", "AttemptTimedOut": "timeout", "WorkerLost": "worker_death"}
"""The spec's names of error types."""


def read_job(job: JobIn, path: str = "") -> EnqueueRequest:
    """Return the call of a job. Raises Problem naming the field, prefixed with `path`."""
    meta = job.meta or {}
    if json_size(meta) > MAX_META_BYTES:
        raise Problem(413, "invalid_request", f"{path}meta: is larger than {MAX_META_BYTES} bytes.")
    options = _options(job)
    queue = options.queue or "default"
    unique = _unique(options.unique, {"type": job.type, "queue": queue, "args": job.args, "meta": meta}, path)
    call = Call(
        task=job.type,
        args=job.args,
        meta=meta,
        queue=queue,
        priority=options.priority or 0,
        scheduled_at=parse_time("scheduled_at", options.scheduled_at or options.delay_until),
        expires_at=parse_time("expires_at", options.expires_at),
        retry=_retry(options.retry, path),
        rate_limit=_rate_limit(options.rate_limit, queue),
        keys=_keys(options.keys),
        extras=OjsOptions(
            id=UUID(job.id) if job.id else None,
            timeout=from_milliseconds(options.timeout_ms),
            visibility=from_milliseconds(options.visibility_timeout_ms),
            unique_key=unique.key if unique else None,
            envelope=_rest(job, options),
            is_pending=bool(options.pending),
        ),
    )
    return EnqueueRequest(call=call, queue=queue, unique=unique)


def json_size(content: object) -> int:
    """Return the size as JSON, in bytes."""
    return len(json.dumps(content, ensure_ascii=False).encode())


def from_milliseconds(span: int | None) -> timedelta | None:
    """Return a duration; None for 0, which means the default."""
    return timedelta(milliseconds=span) if span else None


def write_job(row: CallQueue) -> dict[str, Any]:
    """Return a call as a job."""
    stored = job_of(row)
    rest = stored.envelope or {}
    options = rest.get("options") or {}
    ended, is_waiting = format_time(row.finished_at), row.state in (State.SCHEDULED, State.PENDING)
    is_completed = row.state in (State.COMPLETED, State.DISCARDED) and row.reason != Reason.EXPIRED
    job = {
        **(rest.get("extra") or {}),
        "specversion": "1.0",
        "id": str(row.id),
        "type": row.task,
        "queue": row.queue,
        "state": ojs_state(row.state),
        "args": row.args,
        "meta": row.meta,
        "priority": row.priority,
        "attempt": row.attempt,
        "chosen_keys": row.chosen_keys,
        "max_attempts": max_attempts(row),
        "created_at": format_time(row.created_at),
        "enqueued_at": None if is_waiting else format_time(row.created_at),
        "scheduled_at": options.get("scheduled_at") or format_time(row.scheduled_at),
        "expires_at": options.get("expires_at") or format_time(row.expires_at),
        "started_at": format_time(row.started_at) if row.attempt else None,
        "completed_at": ended if is_completed else None,
        "cancelled_at": ended if row.state == State.CANCELLED else None,
        "discarded_at": ended if row.state == State.DISCARDED else None,
        "next_attempt_at": format_time(row.scheduled_at) if row.state == State.RETRYABLE else None,
        "retry_delay_ms": retry_delay_ms(row),
        "timeout_ms": stored.timeout and round(stored.timeout.total_seconds() * 1000),
        "tags": options.get("tags"),
        "options": options.get("given") or None,
        "rate_limit": options.get("rate_limit"),
        "unique": options.get("unique"),
        "retry": row.retry,
        "result": row.result,
        "error": row.error and write_error(row.error),
        "errors": [write_error(each) for each in row.errors] or None,
        "progress": stored.progress and stored.progress.get("progress"),
        "reason": row.reason,
        "workflow_id": (rest.get("workflow") or {}).get("id"),
        "parent_results": (rest.get("workflow") or {}).get("results"),
    }
    return without_nulls(job)


def max_attempts(row: CallQueue) -> int:
    """Return the maximum number of attempts of a call."""
    return Retry.parse(row.retry if row.retry is not None else conf().retry).max_attempts


def retry_delay_ms(row: CallQueue) -> int | None:
    """Return how long the call waits after its latest failure, or waited."""
    if not row.errors or row.scheduled_at is None or row.state in (State.COMPLETED, State.CANCELLED, State.DISCARDED):
        return None
    since = parse_time("occurred_at", row.errors[-1].get("occurred_at"))
    return (
        None if since is None or row.scheduled_at < since else round((row.scheduled_at - since).total_seconds() * 1000)
    )


def write_error(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failure in the spec's format."""
    kind = _KINDS.get(kept.get("type", ""), kept.get("type"))
    code = kept.get("code") or (kind if kind in _KINDS.values() else "handler_error")
    at = format_time(parse_time("occurred_at", kept.get("occurred_at")))
    return {**kept, "type": kind, "code": code, "occurred_at": at, "timestamp": at}


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return the unique key of a job: SHA-256 of canonical JSON (ojs-unique-jobs, section 5; RFC 8785)."""
    text = json.dumps(_canonical(parts), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Any) -> Any:
    """Return JSON with one form for each number: 1.0 becomes 1."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: _canonical(each) for name, each in value.items()}
        case list():
            return [_canonical(each) for each in value]
        case _:
            return value


def _options(job: JobIn) -> OptionsIn:
    """Return the options of a job, from `options` or from the job itself."""
    fields = OptionsIn.model_fields
    given = {name: each for name in fields if (each := getattr(job.options, name, None)) is not None}
    return OptionsIn.model_construct(**{name: getattr(job, name) for name in fields} | given)


def _retry(given: RetryIn | None, path: str) -> dict[str, Any] | None:
    if given is None:
        return None
    policy = {name: value for name, value in given_fields(given).items() if name in Retry.__dataclass_fields__}
    for name in ("initial_interval", "max_interval"):
        span = getattr(given, f"{name}_ms")
        if span is not None:
            policy[name] = timedelta(milliseconds=span)
    if policy.get("max_attempts") == 0:
        policy["max_attempts"] = 1
    try:
        return Retry.parse(policy, "retry").as_json()
    except PolicyInvalid as refused:
        raise invalid(f"{path}options.{refused.field}", str(refused), status=422, kind="validation_error") from refused


def _rate_limit(given: RateLimitIn | None, queue: str) -> dict[str, Any] | None:
    """Return the policy in the spec's format."""
    if given is None:
        return None
    policy = given_fields(given)
    period, per_second = policy.pop("period", "second"), policy.pop("max_per_second", None)
    if isinstance(policy.get("rate"), int):
        policy["rate"] = {"limit": policy["rate"], "period": _UNITS[period]}
    if per_second is not None:
        # For the queue: on its own key, as an administrator would declare it.
        policy.setdefault("key", f"queue:{queue}")
        policy["rate"] = {"limit": per_second, "period": "PT1S"}
    return policy


def _keys(given: list[str] | dict[str, int] | None) -> list[str] | dict[str, int] | None:
    """Return the keys that a job spends; a name that ends in * stands for any one of those that match."""
    if not given:
        return None
    names = [any_of(name) if is_group(name) else name for name in given]
    return dict(zip(names, given.values(), strict=True)) if isinstance(given, dict) else names


def _unique(given: UniqueIn | None, whole: Mapping[str, Any], path: str) -> Unique | None:
    if given is None:
        return None
    field = f"{path}options.unique"
    key = given.key or []
    is_of_job = UNIQUE_FIELDS.issuperset(key)
    keys: list[str] = [*(given.keys or (key if is_of_job else ()) or ["type"])]
    args_keys = given.args_keys or (None if is_of_job else key)
    parts: dict[str, Any] = {name: whole[name] for name in {"type", *keys}}
    if args_keys is not None:
        there = {name: value for arg in whole["args"] if isinstance(arg, dict) for name, value in arg.items()}
        if absent := [name for name in args_keys if name not in there]:
            raise invalid(
                f"{field}.{'args_keys' if given.args_keys else 'key'}", f"{absent[0]!r} is not in any of the arguments."
            )
        parts["args"] = {name: there[name] for name in args_keys}
    if "meta" in keys:
        if not given.meta_keys:
            raise invalid(f"{field}.meta_keys", "is required if keys includes meta.")
        parts["meta"] = {name: whole["meta"].get(name) for name in given.meta_keys}
    return Unique(
        key=fingerprint(parts),
        states=given.states or _UNIQUE_STATES,
        period=from_milliseconds(given.period_ms) if given.period is None else parse_duration(given.period),
        on_conflict=given.on_conflict or "reject",
    )


def _rest(job: JobIn, options: OptionsIn) -> dict[str, Any] | None:
    """Return the fields of a job that have no column, to be returned unchanged."""
    extra = {name: value for name, value in (job.model_extra or {}).items() if name not in _SYSTEM}
    kept: dict[str, Any] = {"rate_limit": given_fields(options.rate_limit), "unique": given_fields(options.unique)}
    kept |= {"tags": options.tags, "pending": options.pending, "given": job.options and job.options.model_extra}
    times = {"scheduled_at": options.scheduled_at or options.delay_until, "expires_at": options.expires_at}
    kept |= {name: at for name, at in times.items() if at and not at.startswith("+")}
    rest = {"extra": extra, "options": {name: value for name, value in kept.items() if value}}
    return {name: value for name, value in rest.items() if value} or None
