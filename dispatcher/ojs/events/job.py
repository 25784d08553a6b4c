"""Events of a job, built from its row (ojs-events, sections 3.1 and 3.2)."""

from collections.abc import Iterator
from datetime import datetime

from dispatcher.models import CallQueue
from dispatcher.ojs.cron import META_EXPRESSION, META_NAME, META_TRIGGERED
from dispatcher.ojs.events.event import Event, build_event, duration_ms
from dispatcher.ojs.job import max_attempts, write_error
from dispatcher.ojs.wire import format_time, parse_time
from dispatcher.states import Reason, State


def job_events(row: CallQueue) -> Iterator[Event]:
    """Return the events of one call, in chronological order."""
    number = str(row.id)
    about: Event = {"job_id": number, "job_type": row.task, "queue": row.queue}
    if (trace := row.meta.get("trace_id")) is not None:
        about["trace_id"] = trace
    yield from _sent(row, about)
    if row.started_at and row.attempt:
        data = {**about, "attempt": row.attempt}
        yield build_event("job.started", row.started_at, number, data, discriminator=row.attempt)
    for failure in row.errors:
        at = parse_time("occurred_at", failure.get("occurred_at"))
        if at is not None:
            data = {**about, "attempt": failure.get("attempt"), "error": write_error(failure)}
            yield build_event("job.failed", at, number, data, discriminator=failure.get("attempt"))
    if row.state == State.RETRYABLE and row.errors:
        more = {"next_retry_at": format_time(row.scheduled_at), "max_attempts": max_attempts(row)}
        at = parse_time("occurred_at", row.errors[-1].get("occurred_at")) or row.created_at
        data = {**about, "attempt": row.attempt, "error": write_error(row.errors[-1]), **more}
        yield build_event("job.retrying", at, number, data, discriminator=row.attempt)
    if row.finished_at:
        yield from _ended(row, row.finished_at, about)


def _sent(row: CallQueue, about: Event) -> Iterator[Event]:
    number = str(row.id)
    if row.scheduled_at and row.scheduled_at > row.created_at and not row.errors:
        data = {**about, "scheduled_at": format_time(row.scheduled_at)}
        yield build_event("job.scheduled", row.created_at, number, data)
    else:
        yield build_event("job.enqueued", row.created_at, number, {**about, "priority": row.priority})
    if (name := row.meta.get(META_NAME)) is not None and META_TRIGGERED in row.meta:
        data = {**about, "cron_name": name, "cron_expr": row.meta.get(META_EXPRESSION)}
        data["scheduled_at"] = row.meta[META_TRIGGERED]
        yield build_event("cron.triggered", row.created_at, name, data, discriminator=number)


def _ended(row: CallQueue, at: datetime, about: Event) -> Iterator[Event]:
    number = str(row.id)
    if row.reason == Reason.EXPIRED:
        ttl = None if row.expires_at is None else duration_ms(row.created_at, row.expires_at)
        data = {**about, "created_at": format_time(row.created_at), "expired_at": format_time(at), "ttl_ms": ttl}
        yield build_event("job.expired", at, number, data)
        return
    data = {**about, "attempt": row.attempt, "duration_ms": duration_ms(row.started_at or row.created_at, at)}
    if row.state == State.DISCARDED:
        data |= {"total_attempts": row.attempt, "reason": row.reason}
        data |= {"last_error": write_error(row.error)} if row.error else {}
    yield build_event(f"job.{row.state}", at, number, data, discriminator=row.attempt)
    if row.reason == Reason.LIMIT:
        dropped = {"key": (row.error or {}).get("key"), **about}
        yield build_event("rate_limit.dropped", at, number, dropped)
    if row.reason == Reason.QUEUE_FULL:
        yield build_event("backpressure.dropped", at, row.queue, about, discriminator=number)
