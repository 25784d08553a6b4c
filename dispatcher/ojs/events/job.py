"""What happened to a job, told from its row (ojs-events, sections 3.1 and 3.2)."""

from collections.abc import Iterator
from typing import Any

from dispatcher.models import CallQueue
from dispatcher.ojs.cron import META_EXPRESSION, META_NAME, META_TRIGGERED
from dispatcher.ojs.events.event import event, milliseconds
from dispatcher.ojs.job import max_attempts, write_error
from dispatcher.ojs.wire import read_moment, stamp
from dispatcher.states import Reason, State

Told = dict[str, Any]


def of_job(row: CallQueue) -> Iterator[Told]:
    """Tell what happened to one call, in the order in which it did."""
    number = str(row.id)
    about: Told = {"job_id": number, "job_type": row.task, "queue": row.queue}
    if (trace := row.meta.get("trace_id")) is not None:
        about["trace_id"] = trace
    yield from _sent(row, about)
    if row.started_at and row.attempt:
        yield event("job.started", row.started_at, number, {**about, "attempt": row.attempt}, mark=row.attempt)
    for failure in row.errors:
        at = read_moment("occurred_at", failure.get("occurred_at"))
        if at is not None:
            told = {**about, "attempt": failure.get("attempt"), "error": write_error(failure)}
            yield event("job.failed", at, number, told, mark=failure.get("attempt"))
    if row.state == State.RETRYABLE and row.errors:
        more = {"next_retry_at": stamp(row.scheduled_at), "max_attempts": max_attempts(row)}
        at = read_moment("occurred_at", row.errors[-1].get("occurred_at")) or row.created_at
        told = {**about, "attempt": row.attempt, "error": write_error(row.errors[-1]), **more}
        yield event("job.retrying", at, number, told, mark=row.attempt)
    if row.finished_at:
        yield from _ended(row, about)


def _sent(row: CallQueue, about: Told) -> Iterator[Told]:
    number = str(row.id)
    if row.scheduled_at and row.scheduled_at > row.created_at and not row.errors:
        told = {**about, "scheduled_at": stamp(row.scheduled_at)}
        yield event("job.scheduled", row.created_at, number, told)
    else:
        yield event("job.enqueued", row.created_at, number, {**about, "priority": row.priority})
    if (name := row.meta.get(META_NAME)) is not None and META_TRIGGERED in row.meta:
        told = {**about, "cron_name": name, "cron_expr": row.meta.get(META_EXPRESSION)}
        told["scheduled_at"] = row.meta[META_TRIGGERED]
        yield event("cron.triggered", row.created_at, name, told, mark=number)


def _ended(row: CallQueue, about: Told) -> Iterator[Told]:
    number, at = str(row.id), row.finished_at
    if at is None:
        return
    if row.reason == Reason.EXPIRED:
        ttl = None if row.expires_at is None else milliseconds(row.created_at, row.expires_at)
        told = {**about, "created_at": stamp(row.created_at), "expired_at": stamp(at), "ttl_ms": ttl}
        yield event("job.expired", at, number, told)
        return
    told = {**about, "attempt": row.attempt, "duration_ms": milliseconds(row.started_at or row.created_at, at)}
    if row.state == State.DISCARDED:
        told |= {"total_attempts": row.attempt, "reason": row.reason}
        told |= {"last_error": write_error(row.error)} if row.error else {}
    yield event(f"job.{row.state}", at, number, told, mark=row.attempt)
    if row.reason == Reason.LIMIT:
        dropped = {"key": (row.error or {}).get("key"), **about}
        yield event("rate_limit.dropped", at, number, dropped)
    if row.reason == Reason.QUEUE_FULL:
        yield event("backpressure.dropped", at, row.queue, about, mark=number)
