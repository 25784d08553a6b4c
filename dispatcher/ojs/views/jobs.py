"""Jobs: send, show, activate, cancel, progress, and dead letters (ojs-http-binding, ojs-progress, ojs-dead-letter).

Dead letters are jobs that are out of attempts and asked to be kept.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import isfinite, nan
from time import monotonic, sleep
from typing import Any, Final

from django.db.models import Count, Max, Min, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from ninja import Query, Status

from dispatcher import api, sql
from dispatcher.models import CallQueue
from dispatcher.ojs import job_query, jobs, worker_reports
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import Enqueued, EnqueueRequest, enqueue, ojs_state
from dispatcher.ojs.errors import QueueFull
from dispatcher.ojs.job import MAX_META_BYTES, json_size, read_job, write_job
from dispatcher.ojs.job_query import LettersIn
from dispatcher.ojs.jobs import job_of, with_options
from dispatcher.ojs.long_poll import disconnect, reserve_wait
from dispatcher.ojs.pagination import PageIn, window
from dispatcher.ojs.permissions import require_send, visible_job
from dispatcher.ojs.requests import BatchIn, JobIn, PercentIn, ProgressIn
from dispatcher.ojs.responses import Answer, ItemsReply, Job, JobOrSummary, Many, One, Routes, replies
from dispatcher.ojs.views.workers import proof, rejected
from dispatcher.ojs.wire import (
    Problem,
    conflict,
    format_time,
    invalid,
    is_admins,
    job_body,
    missing,
    parse_id,
    parse_time,
    the_one,
)
from dispatcher.reports import why_in_words
from dispatcher.states import OnFull, Reason, State

router = Routes(tags=["jobs"])

_LONGEST_BLOCK_S = 30.0
_POLL_S = 0.1
_ORDER: Final = ("-finished_at", "-id")


@router.post("/jobs", response=replies(One[Job], 201) | {200: One[JobOrSummary]})
def enqueue_job(request: HttpRequest, response: HttpResponse, job: JobIn) -> Any:
    """Send one job (PUSH)."""
    wanted = read_job(job)
    access = access_of(request)
    require_send(access, {"": wanted})
    (enqueued,) = _enqueue(request, [wanted])
    body = {"job": _render(access, enqueued)}
    if not enqueued.is_new:
        return {**body, "deduplicated": True}
    response["Location"] = f"{request.path}/{enqueued.call.id}"
    if (bound := enqueued.bound) is not None and bound.is_nearly_full:
        response["X-OJS-Queue-Depth"], response["X-OJS-Queue-Bound"] = str(bound.depth), str(bound.max_depth)
        response["X-OJS-Queue-Pressure"] = f"{bound.depth / bound.max_depth:.2f}"
    return Status(201, body)


@router.post("/jobs/batch", response=replies(Many[JobOrSummary], 201))
def enqueue_jobs(request: HttpRequest, batch: BatchIn) -> Status[Answer]:
    """Send jobs, all or none (PUSH)."""
    paths = {f"jobs.{number}.": job for number, job in enumerate(batch.jobs)}
    wanted = {path: read_job(job, path) for path, job in paths.items()}
    access = access_of(request)
    require_send(access, wanted)
    enqueued = _enqueue(request, [*wanted.values()])
    return Status(201, {"jobs": [_render(access, each) for each in enqueued], "count": len(enqueued)})


@router.get("/admin/jobs/{job_id}")
@router.get("/jobs/{job_id}", response=replies(One[Job]))
def info(request: HttpRequest, job_id: str) -> Answer:
    """Show a job (INFO)."""
    call = find_for(request, "read", job_id)
    reason = why_in_words(call.pk) if call.state in (State.AVAILABLE, State.SCHEDULED) else None
    return job_body(request, {**write_job(call), **({"why_waiting": reason} if reason else {})})


@router.post("/admin/jobs/{job_id}/cancel", auth=ADMIN)
@router.delete("/jobs/{job_id}", response=replies(One[JobOrSummary]))
def cancel(request: HttpRequest, job_id: str) -> Answer:
    """Cancel a job, also one that a worker has fetched (CANCEL); not one that has ended, or runs in Celery."""
    call = find_for(request, "send", job_id)
    ended = worker_reports.cancel(call.id)
    if not isinstance(ended, CallQueue):
        state = ojs_state(ended.state or call.state)
        message = f"Cannot cancel a job that is {state}."
        raise conflict(message, job_id=job_id, current_state=state)
    return job_body(request, visible_job(access_of(request), ended) | {"previous_state": ojs_state(call.state)})


@router.post("/jobs/{job_id}/activate", response=replies(One[JobOrSummary]))
def activate(request: HttpRequest, job_id: str) -> Answer:
    """Make a pending job available; a repeated request returns the job unchanged."""
    call = find_for(request, "send", job_id)
    was_pending = ((job_of(call).envelope or {}).get("options") or {}).get("pending")
    if not api.activate([call.id]) and not was_pending:
        state = ojs_state(find(job_id).state)
        message = f"Only pending jobs can be activated; this one is {state}."
        raise conflict(message, job_id=job_id, current_state=state)
    more = {"activated_at": sql.now(), "previous_state": "pending"}
    return {"job": {**visible_job(access_of(request), find(job_id)), **more}}


@router.put("/jobs/{job_id}/progress")
def put_progress(request: HttpRequest, job_id: str, progress: ProgressIn) -> Answer:
    """Store the progress of a running job. A ticket, or the worker that holds the job, renews its lease."""
    return _record_progress(request, job_id, progress, progress.progress)


@router.post("/workers/progress")
def post_progress(request: HttpRequest, progress: PercentIn) -> Answer:
    """Store the progress of a running job in percent: no document of the spec has it, and the SDKs send it."""
    return _record_progress(request, progress.job_id, progress, progress.percentage / 100)


@router.get("/jobs/{job_id}/progress")
def get_progress(request: HttpRequest, response: HttpResponse, job_id: str) -> Answer:
    """Show the progress that the job's worker reported last."""
    call = find_for(request, "read", job_id)
    response["Cache-Control"] = "no-cache"
    return _render_progress(call, job_of(call).progress)


@router.get("/admin/dead-letter", response=replies(ItemsReply), auth=READ)
@router.get("/dead-letter", response=replies(Many[Job]), auth=READ)
def letters(request: HttpRequest, page: Query[PageIn], wanted: Query[LettersIn]) -> Answer:
    """List the dead letters, latest first; `queue` and `type` filter them."""
    rows, (name, default) = wanted.filter(_dead()), ("items", 20) if is_admins(request) else ("jobs", 50)
    found = job_query.page(page, rows, order=_ORDER, among=_discarded(), default=default)
    return {name: [write_job(call) for call in found.rows], "pagination": found.pagination}


@router.get("/dead-letter/stats", auth=READ)
@router.get("/admin/dead-letter/stats", auth=READ)
def stats(request: HttpRequest) -> Answer:
    """Count the dead letters among the latest ROW_LIMIT discarded jobs, by queue and by error type."""
    looked_through = window(_dead(), _ORDER, _discarded())
    letters = looked_through.rows.order_by()
    by_queue = _counts(letters.values_list("queue"))
    by_type = _counts(letters.values_list(Coalesce(KT("error__type"), Value("None", output_field=TextField()))))
    return {
        "total": sum(by_queue.values()),
        "total_is_exact": looked_through.last is None,
        "by_queue": by_queue,
        "by_error_type": by_type,
        **letters.aggregate(oldest_at=Min("finished_at"), newest_at=Max("finished_at")),
    }


@router.get("/dead-letter/{job_id}", response=replies(One[Job]))
def letter(request: HttpRequest, job_id: str) -> Answer:
    """Show a dead letter."""
    call = _find_letter(job_id)
    access_of(request).require("read", call.queue)
    return {"job": write_job(call)}


@router.post("/admin/dead-letter/{job_id}/retry", auth=ADMIN)
@router.post("/dead-letter/{job_id}/retry", response=replies(One[JobOrSummary]))
def retry(request: HttpRequest, job_id: str) -> Answer:
    """Make a dead letter wait again, from attempt 0; its errors are kept."""
    call, access = _find_letter(job_id), access_of(request)
    access.require("send", call.queue)
    api.retry([call.id])
    call.refresh_from_db()
    return job_body(request, {**visible_job(access, call), "re_enqueued_at": sql.now()})


@router.delete("/admin/dead-letter/{job_id}", response=replies(None, 204), auth=ADMIN)
@router.delete("/dead-letter/{job_id}", auth=ADMIN)
def delete(request: HttpRequest, job_id: str) -> Any:
    """Delete a dead letter permanently."""
    _dead().filter(id=_find_letter(job_id).id).delete()
    return Status(204, None) if is_admins(request) else {"deleted": True, "job_id": job_id}


def find(job_id: str) -> CallQueue:
    """Return a call. Raises Problem if it does not exist."""
    for call in jobs.read([parse_id("job", job_id)]):
        return call
    raise missing("job", job_id)


def find_for(request: HttpRequest, verb: str, job_id: str) -> CallQueue:
    """Return a call. Raises Problem if it does not exist, or if this verb is not allowed on its queue."""
    call = find(job_id)
    access_of(request).require(verb, call.queue)
    return call


def _render(access: Access, enqueued: Enqueued) -> Answer:
    return write_job(enqueued.call) if enqueued.is_new else visible_job(access, enqueued.call)


def _enqueue(request: HttpRequest, wanted: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """Send jobs; if a full queue blocks, wait as long as the client asks for."""
    access = access_of(request)
    wanted = [replace(each, call=with_options(each.call, sender=access.name)) for each in wanted]
    with reserve_wait(request, _block_time(request)) as granted:
        until = monotonic() + granted.total_seconds()
        while True:
            try:
                return enqueue(wanted, may_send=partial(access.allows, "send"))
            except QueueFull as full:
                if full.strategy != OnFull.BLOCK or monotonic() > until or not access.is_valid():
                    raise
            disconnect()
            sleep(_POLL_S)


def _block_time(request: HttpRequest) -> timedelta:
    given = request.headers.get("OJS-Block-Timeout", "0")
    try:
        seconds = float(given)
    except ValueError:
        seconds = nan
    if not isfinite(seconds):
        raise invalid("OJS-Block-Timeout", f"{given!r} must be a number of seconds.")
    return timedelta(seconds=min(max(seconds, 0.0), _LONGEST_BLOCK_S))


def _record_progress(request: HttpRequest, job_id: str, sent: ProgressIn | PercentIn, reached: float | None) -> Answer:
    call = find_for(request, "fetch", job_id)
    if json_size(sent.data) > MAX_META_BYTES:
        raise Problem(413, "invalid_request", f"data: is larger than {MAX_META_BYTES} bytes.")
    content = None if sent.data is None else json.dumps(sent.data)
    bounded = None if reached is None else min(1.0, max(0.0, reached))
    reported = worker_reports.Progress(progress=bounded, message=sent.message, content=content)
    kept = worker_reports.record_progress(call.id, reported, **proof(sent))
    if isinstance(kept, worker_reports.RejectedReport):
        raise rejected(kept, job_id)
    return _render_progress(call, job_of(call).progress if kept is None else kept)


def _render_progress(call: CallQueue, kept: Mapping[str, Any] | None) -> Answer:
    reached = {name: (kept or {}).get(name) for name in ("progress", "message", "data", "updated_at")}
    if kept:
        # PostgreSQL writes times into JSON with the offset of the session's time zone (ojs-http-binding, section 6.3).
        reached["updated_at"] = format_time(parse_time("updated_at", kept["updated_at"]))
    if call.state == State.COMPLETED and kept:
        reached["progress"] = 1.0
    return {"job_id": str(call.id), "state": ojs_state(call.state), **reached}


def _find_letter(job_id: str) -> CallQueue:
    return the_one(_dead().filter(id=parse_id("dead_letter_job", job_id)), "dead_letter_job", job_id)


def _counts(rows: QuerySet[CallQueue, tuple[str]]) -> dict[str, int]:
    return dict(rows.annotate(count=Count("id")).order_by("-count"))


def _dead() -> QuerySet[CallQueue]:
    """Return the calls that ran out of attempts and asked to be kept, and those that kill their workers."""
    return _discarded().filter(Q(reason=Reason.FAILED, retry__on_exhaustion="dead_letter") | Q(reason=Reason.POISON))


def _discarded() -> QuerySet[CallQueue]:
    # Both conditions are needed for the index of ended calls.
    return CallQueue.objects.filter(state=State.DISCARDED, finished_at__isnull=False)
