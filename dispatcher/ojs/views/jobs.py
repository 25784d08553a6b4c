"""Jobs: sent, looked at, activated, cancelled, and how far they are (ojs-http-binding, section 9; ojs-progress)."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import isfinite, nan
from time import monotonic, sleep
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.errors import QueueFull
from dispatcher.models import CallQueue
from dispatcher.ojs import fetch
from dispatcher.ojs.api import access_of
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import Pushed, Wanted, push, shown
from dispatcher.ojs.job import MAX_META_BYTES, json_size, read_job, write_job
from dispatcher.ojs.long_poll import disconnect, place
from dispatcher.ojs.permissions import need_to_send, seen, sent_by
from dispatcher.ojs.queues import known_queues
from dispatcher.ojs.requests import BatchIn, JobIn, ProgressIn
from dispatcher.ojs.responses import JobReply, SeenJobReply, SeenJobsReply, replies
from dispatcher.ojs.views.workers import proof, refused
from dispatcher.ojs.wire import Problem, answer, conflict, invalid, missing, read_id, stamp
from dispatcher.states import OnFull, State

router = Router(tags=["jobs"])

_LONGEST_BLOCK_S = 30.0
_LOOK_S = 0.1


@router.post("/jobs", response=replies(JobReply, 201) | {200: SeenJobReply}, summary="PUSH")
def push_job(request: HttpRequest, job: JobIn) -> HttpResponse:
    """Send one job."""
    wanted = read_job(job)
    access = access_of(request)
    need_to_send(access, {"": wanted})
    (pushed,) = _push(request, [wanted])
    body = {"job": _written(access, pushed)}
    if not pushed.is_new:
        return answer({**body, "deduplicated": True})
    return answer(body, 201, headers={"Location": f"{request.path}/{pushed.call.id}", **_pressure(pushed)})


@router.post("/jobs/batch", response=replies(SeenJobsReply, 201), summary="PUSH of many, all or none")
def push_jobs(request: HttpRequest, batch: BatchIn) -> HttpResponse:
    """Send jobs, all or none."""
    paths = {f"jobs.{number}.": job for number, job in enumerate(batch.jobs)}
    wanted = {path: read_job(job, path) for path, job in paths.items()}
    access = access_of(request)
    need_to_send(access, wanted)
    pushed = _push(request, [*wanted.values()])
    return answer({"jobs": [_written(access, each) for each in pushed], "count": len(pushed)}, 201)


@router.get("/jobs/{job_id}", response=replies(JobReply), summary="INFO")
def info(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a job."""
    call = find(job_id)
    access_of(request).need("read", call.queue)
    return answer({"job": write_job(call)})


@router.delete("/jobs/{job_id}", response=replies(SeenJobReply), summary="CANCEL")
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """End a job, also one that a worker has fetched."""
    call = find(job_id)
    access = access_of(request)
    access.need("send", call.queue)
    return answer({"job": {**seen(access, cancelled(call)), "previous_state": shown(call.state)}})


@router.post("/jobs/{job_id}/activate", response=replies(SeenJobReply), summary="ACTIVATE")
def activate(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let a pending job wait for its turn; a repeated request is answered with the job as it stands."""
    call = find(job_id)
    access = access_of(request)
    access.need("send", call.queue)
    was_pending = ((call.envelope or {}).get("options") or {}).get("pending")
    if not api.activate([call.id]) and not was_pending:
        state = shown(find(job_id).state)
        message = f"Only pending jobs can be activated; this one is {state}."
        raise conflict(message, job_id=job_id, current_state=state)
    now = find(job_id)
    return answer({"job": {**seen(access, now), "activated_at": stamp(sql.now()), "previous_state": "pending"}})


@router.put("/jobs/{job_id}/progress", response=replies(), summary="How far a running job is")
def put_progress(request: HttpRequest, job_id: str, progress: ProgressIn) -> HttpResponse:
    """Keep how far a job is; what does not run is left alone. A ticket or a worker that holds it renews its lease."""
    call = find(job_id)
    access_of(request).need("fetch", call.queue)
    reached = min(1.0, max(0.0, float(progress.progress)))
    if json_size(progress.data) > MAX_META_BYTES:
        raise Problem(413, "invalid_request", f"data: takes more than {MAX_META_BYTES} bytes.")
    content = None if progress.data is None else json.dumps(progress.data)
    said = fetch.Reached(progress=reached, message=progress.message, content=content)
    kept = fetch.note_progress(call.id, said, **proof(progress))
    if isinstance(kept, fetch.Refused):
        raise refused(kept, job_id)
    return answer(_shown_progress(call, call.progress if kept is None else kept))


@router.get("/jobs/{job_id}/progress", response=replies(), summary="How far a job is")
def get_progress(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show how far a job is, as its worker said last."""
    call = find(job_id)
    access_of(request).need("read", call.queue)
    return answer(_shown_progress(call, call.progress), headers={"Cache-Control": "no-cache"})


def find(job_id: str) -> CallQueue:
    """Return a call. Raises Problem if there is none."""
    call = CallQueue.objects.using(conf().database).filter(id=read_id("job", job_id)).first()
    if call is None:
        raise missing("job", job_id)
    return call


def cancelled(call: CallQueue) -> CallQueue:
    """End a call, and return it. Raises Problem if it has ended, or runs in Celery."""
    ended = fetch.cancel(call.id)
    if isinstance(ended, CallQueue):
        return ended
    state = shown(ended.state or call.state)
    message = f"Cannot cancel a job that is {state}."
    raise conflict(message, job_id=str(call.id), current_state=state)


def _written(access: Access, pushed: Pushed) -> dict[str, Any]:
    return write_job(pushed.call) if pushed.is_new else seen(access, pushed.call)


def _push(request: HttpRequest, wanted: Sequence[Wanted]) -> list[Pushed]:
    """Send jobs; where a full queue blocks, wait for as long as the client asks for."""
    wait = timedelta(seconds=_block_s(request))
    known_queues({each.queue for each in wanted})
    access = access_of(request)
    wanted = [sent_by(access.name, each) for each in wanted]
    with place(request, wait) as granted:
        until = monotonic() + granted.total_seconds()
        while True:
            try:
                return push(wanted, may_send=partial(access.allows, "send"))
            except QueueFull as full:
                if full.strategy != OnFull.BLOCK or monotonic() > until or not access.holds():
                    raise
            disconnect()
            sleep(_LOOK_S)


def _block_s(request: HttpRequest) -> float:
    given = request.headers.get("OJS-Block-Timeout", "0")
    try:
        seconds = float(given)
    except ValueError:
        seconds = nan
    if not isfinite(seconds):
        raise invalid("OJS-Block-Timeout", f"{given!r} must be a number of seconds.")
    return min(max(seconds, 0.0), _LONGEST_BLOCK_S)


def _pressure(pushed: Pushed) -> dict[str, str]:
    bound = pushed.bound
    if bound is None or not bound.is_nearly_full:
        return {}
    return {
        "X-OJS-Queue-Depth": str(bound.depth),
        "X-OJS-Queue-Bound": str(bound.max_depth),
        "X-OJS-Queue-Pressure": f"{bound.depth / bound.max_depth:.2f}",
    }


def _shown_progress(call: CallQueue, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    reached = {name: (kept or {}).get(name) for name in ("progress", "message", "data", "updated_at")}
    if call.state == State.COMPLETED and kept:
        reached["progress"] = 1.0
    return {"job_id": str(call.id), "state": shown(call.state), **reached}
