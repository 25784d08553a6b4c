"""Jobs: send, show, activate, cancel, and progress (ojs-http-binding, section 9; ojs-progress)."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import isfinite, nan
from time import monotonic, sleep
from typing import Any

from django.http import HttpRequest, HttpResponse

from dispatcher import api, sql
from dispatcher.models import CallQueue
from dispatcher.ojs import jobs, worker_reports
from dispatcher.ojs.api import ADMIN, access_of
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import Enqueued, EnqueueRequest, enqueue, ojs_state
from dispatcher.ojs.errors import QueueFull
from dispatcher.ojs.job import MAX_META_BYTES, json_size, read_job, write_job
from dispatcher.ojs.jobs import job_of
from dispatcher.ojs.long_poll import disconnect, reserve_wait
from dispatcher.ojs.permissions import require_send, visible_job, with_sender
from dispatcher.ojs.requests import BatchIn, JobIn, ProgressIn
from dispatcher.ojs.responses import JobOrSummaryReply, JobReply, JobsOrSummariesReply, Routes, replies
from dispatcher.ojs.views.workers import proof, rejected
from dispatcher.ojs.wire import Problem, conflict, format_time, invalid, job_body, json_response, missing, parse_id
from dispatcher.reports import why_in_words
from dispatcher.states import OnFull, State

router = Routes(tags=["jobs"])

_LONGEST_BLOCK_S = 30.0
_POLL_S = 0.1


@router.post("/jobs", response=replies(JobReply, 201) | {200: JobOrSummaryReply})
def enqueue_job(request: HttpRequest, job: JobIn) -> HttpResponse:
    """Send one job (PUSH)."""
    wanted = read_job(job)
    access = access_of(request)
    require_send(access, {"": wanted})
    (enqueued,) = _enqueue(request, [wanted])
    body = {"job": _render(access, enqueued)}
    if not enqueued.is_new:
        return json_response({**body, "deduplicated": True})
    return json_response(body, 201, headers={"Location": f"{request.path}/{enqueued.call.id}", **_pressure(enqueued)})


@router.post("/jobs/batch", response=replies(JobsOrSummariesReply, 201))
def enqueue_jobs(request: HttpRequest, batch: BatchIn) -> HttpResponse:
    """Send jobs, all or none (PUSH)."""
    paths = {f"jobs.{number}.": job for number, job in enumerate(batch.jobs)}
    wanted = {path: read_job(job, path) for path, job in paths.items()}
    access = access_of(request)
    require_send(access, wanted)
    enqueued = _enqueue(request, [*wanted.values()])
    return json_response({"jobs": [_render(access, each) for each in enqueued], "count": len(enqueued)}, 201)


@router.get("/admin/jobs/{job_id}")
@router.get("/jobs/{job_id}", response=replies(JobReply))
def info(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a job (INFO)."""
    call = find_for(request, "read", job_id)
    reason = why_in_words(call.pk) if call.state in (State.AVAILABLE, State.SCHEDULED) else None
    return json_response(job_body(request, {**write_job(call), **({"why_waiting": reason} if reason else {})}))


@router.post("/admin/jobs/{job_id}/cancel", auth=ADMIN)
@router.delete("/jobs/{job_id}", response=replies(JobOrSummaryReply))
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """Cancel a job, also one that a worker has fetched (CANCEL)."""
    call = find_for(request, "send", job_id)
    cancelled = visible_job(access_of(request), cancel_job(call))
    return json_response(job_body(request, {**cancelled, "previous_state": ojs_state(call.state)}))


@router.post("/jobs/{job_id}/activate", response=replies(JobOrSummaryReply))
def activate(request: HttpRequest, job_id: str) -> HttpResponse:
    """Make a pending job available; a repeated request returns the job unchanged."""
    call = find_for(request, "send", job_id)
    was_pending = ((job_of(call).envelope or {}).get("options") or {}).get("pending")
    if not api.activate([call.id]) and not was_pending:
        state = ojs_state(find(job_id).state)
        message = f"Only pending jobs can be activated; this one is {state}."
        raise conflict(message, job_id=job_id, current_state=state)
    more = {"activated_at": format_time(sql.now()), "previous_state": "pending"}
    return json_response({"job": {**visible_job(access_of(request), find(job_id)), **more}})


@router.put("/jobs/{job_id}/progress")
def put_progress(request: HttpRequest, job_id: str, progress: ProgressIn) -> HttpResponse:
    """Store the progress of a running job. A ticket, or the worker that holds the job, renews its lease."""
    call = find_for(request, "fetch", job_id)
    reached = min(1.0, max(0.0, float(progress.progress)))
    if json_size(progress.data) > MAX_META_BYTES:
        raise Problem(413, "invalid_request", f"data: is larger than {MAX_META_BYTES} bytes.")
    content = None if progress.data is None else json.dumps(progress.data)
    reported = worker_reports.Progress(progress=reached, message=progress.message, content=content)
    kept = worker_reports.record_progress(call.id, reported, **proof(progress))
    if isinstance(kept, worker_reports.RejectedReport):
        raise rejected(kept, job_id)
    return json_response(_render_progress(call, job_of(call).progress if kept is None else kept))


@router.get("/jobs/{job_id}/progress")
def get_progress(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show the progress that the job's worker reported last."""
    call = find_for(request, "read", job_id)
    return json_response(_render_progress(call, job_of(call).progress), headers={"Cache-Control": "no-cache"})


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


def cancel_job(call: CallQueue) -> CallQueue:
    """Cancel a call and return it. Raises Problem if it has ended, or runs in Celery."""
    ended = worker_reports.cancel(call.id)
    if isinstance(ended, CallQueue):
        return ended
    state = ojs_state(ended.state or call.state)
    message = f"Cannot cancel a job that is {state}."
    raise conflict(message, job_id=str(call.id), current_state=state)


def _render(access: Access, enqueued: Enqueued) -> dict[str, Any]:
    return write_job(enqueued.call) if enqueued.is_new else visible_job(access, enqueued.call)


def _enqueue(request: HttpRequest, wanted: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """Send jobs; if a full queue blocks, wait as long as the client asks for."""
    wait = timedelta(seconds=_block_s(request))
    access = access_of(request)
    wanted = [with_sender(access.name, each) for each in wanted]
    with reserve_wait(request, wait) as granted:
        until = monotonic() + granted.total_seconds()
        while True:
            try:
                return enqueue(wanted, may_send=partial(access.allows, "send"))
            except QueueFull as full:
                if full.strategy != OnFull.BLOCK or monotonic() > until or not access.is_valid():
                    raise
            disconnect()
            sleep(_POLL_S)


def _block_s(request: HttpRequest) -> float:
    given = request.headers.get("OJS-Block-Timeout", "0")
    try:
        seconds = float(given)
    except ValueError:
        seconds = nan
    if not isfinite(seconds):
        raise invalid("OJS-Block-Timeout", f"{given!r} must be a number of seconds.")
    return min(max(seconds, 0.0), _LONGEST_BLOCK_S)


def _pressure(enqueued: Enqueued) -> dict[str, str]:
    bound = enqueued.bound
    if bound is None or not bound.is_nearly_full:
        return {}
    return {
        "X-OJS-Queue-Depth": str(bound.depth),
        "X-OJS-Queue-Bound": str(bound.max_depth),
        "X-OJS-Queue-Pressure": f"{bound.depth / bound.max_depth:.2f}",
    }


def _render_progress(call: CallQueue, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    reached = {name: (kept or {}).get(name) for name in ("progress", "message", "data", "updated_at")}
    if call.state == State.COMPLETED and kept:
        reached["progress"] = 1.0
    return {"job_id": str(call.id), "state": ojs_state(call.state), **reached}
