"""The format of an event (ojs-events, section 2)."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from dispatcher import validate
from dispatcher.models import CallQueue
from dispatcher.ojs.cron import META_EXPRESSION, META_NAME, META_TRIGGERED
from dispatcher.ojs.job import max_attempts, write_error
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.wire import format_time, parse_time
from dispatcher.states import Reason, State

Event = dict[str, Any]

_SOURCE: Final = "ojs://django-callqueue"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PREFIX: Final = "evt_"


def build_event(kind: str, at: datetime, subject: str, data: Mapping[str, Any], *, discriminator: object = "") -> Event:
    """Return an event. Its id is derived from the time and the other arguments, so each read gives the same id.

    discriminator: distinguishes events of one kind about the same subject.
    """
    digest = sha256(f"{subject} {kind} {discriminator}".encode()).hexdigest()
    # The 12 bits after the version hold the part of the millisecond (RFC 9562, section 6.2): a trip has several events.
    part = at.microsecond % 1_000 * 4_096 // 1_000
    number = f"{_since_epoch(at):012x}7{part:03x}8{digest[:15]}"
    return {
        "specversion": "1.0",
        "id": f"{_PREFIX}{UUID(number)}",
        "type": kind,
        "source": _SOURCE,
        "time": format_time(at),
        "subject": subject,
        "datacontenttype": "application/json",
        "data": data,
    }


def cursor_at(at: datetime) -> str:
    """Return the lowest id of this millisecond: earlier events have lower ids, later ones have higher ids."""
    return f"{_PREFIX}{UUID(f'{_since_epoch(at):012x}70008{0:015x}')}"


def time_of(cursor: str) -> datetime:
    """Return the time of an event id or a cursor; the epoch for an empty one. Raises ValueError for other text."""
    if not cursor:
        return _EPOCH
    number = cursor.removeprefix(_PREFIX)
    if number == cursor or str(UUID(number)) != number:
        message = f"{cursor!r} is not the id of an event"
        raise ValueError(message)
    try:
        at = validate.moment("cursor", _EPOCH + (UUID(number).int >> 80) * _MILLISECOND)
    except OverflowError as error:
        raise ValueError(cursor) from error
    return at or _EPOCH


def _since_epoch(at: datetime) -> int:
    return (at - _EPOCH) // _MILLISECOND


def duration_ms(since: datetime, until: datetime) -> int:
    """Return the duration in milliseconds; never negative."""
    return max(0, round((until - since).total_seconds() * 1000))


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


def workflow_events(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Iterator[Event]:
    """Return the events of one workflow. A part whose call was deleted has none."""
    number, total = str(workflow.id), len(workflow.plan)
    about: Event = {"workflow_id": number, "workflow_name": workflow.name}
    yield build_event("workflow.started", workflow.created_at, number, {**about, "total_steps": total})
    steps = [(part, calls[part.call]) for part in parts if part.role == "step" and part.call and part.call in calls]
    # From the call, not from the part: the part's outcome is recorded later, when newer events may be visible already.
    done = [
        (call, part, call.finished_at) for part, call in steps if call.state == State.COMPLETED and call.finished_at
    ]
    for place, (call, part, ended_at) in enumerate(sorted(done, key=lambda each: each[0].position), 1):
        took = duration_ms(call.started_at or call.created_at, ended_at)
        data = {**about, "step_id": _name(workflow, part), "step_type": call.task, "duration_ms": took}
        data["steps_remaining"] = total - place
        yield build_event("workflow.step_completed", ended_at, number, data, discriminator=part.place)
    if workflow.ended_at is None:
        return
    if workflow.state == "completed":
        took = duration_ms(workflow.created_at, workflow.ended_at)
        data = {**about, "total_steps": total, "duration_ms": took}
        yield build_event("workflow.completed", workflow.ended_at, number, data)
    if workflow.state == "failed":
        yield build_event("workflow.failed", workflow.ended_at, number, {**about, **_failure(workflow, parts, calls)})


def _name(workflow: Workflow, part: Part) -> str:
    """Return the id of a step, or its index if it has none."""
    return str(workflow.plan[part.place].get("id", part.place))


def _failure(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Event:
    for part in parts:
        call = calls.get(part.call) if part.call else None
        if part.role != "step" or part.outcome in ("open", "completed") or not (part.error or call):
            continue
        kept = part.error or (call and call.error)
        error = write_error(kept) if kept else {"code": "cancelled", "message": "it was cancelled"}
        kind = workflow.plan[part.place].get("type")
        return {"failed_step_id": _name(workflow, part), "failed_step_type": kind, "error": error}
    return {}
