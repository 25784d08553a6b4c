"""Workers: fetch, report and heartbeat (ojs-http-binding, section 10; ojs-worker-protocol)."""

from datetime import datetime, timedelta
from typing import Final

from django.http import HttpRequest, HttpResponse
from ninja import Status

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ending import Reported
from dispatcher.lifecycle import run
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import CallQueue
from dispatcher.ojs import fetch, pull_workers, worker_reports
from dispatcher.ojs.api import READ, access_of
from dispatcher.ojs.auth import Access
from dispatcher.ojs.enqueue import assign_queues, ojs_state
from dispatcher.ojs.fetch import FetchRequest, ordered
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.job import MAX_META_BYTES, from_milliseconds, json_size, write_job
from dispatcher.ojs.long_poll import reserve_wait
from dispatcher.ojs.models import Pool, PullWorker
from dispatcher.ojs.requests import AckIn, FetchIn, HeartbeatIn, NackIn, Proof, Report
from dispatcher.ojs.responses import AckReply, Answer, HeartbeatReply, Job, Many, NackReply, Reply, Routes, replies
from dispatcher.ojs.wire import Problem, conflict, missing, parse_id, parse_time, without_nulls
from dispatcher.ojs.worker_reports import RejectedReport, ReservedCall
from dispatcher.ojs.workflow.advance import advance_after
from dispatcher.states import State

router = Routes(tags=["workers"])

_FINAL_CODES = ("DISCARD", "FAIL", "DEAD_LETTER", "NON_RETRYABLE_ERROR")
_REASON: Final = 200
"""How many characters of a worker's message the history keeps."""
_DRAINING = {"drain": "quiet", "draining": "quiet", "quiet": "quiet", "terminate": "terminate"}


@router.post("/workers/fetch", response=replies(Many[Job]))
def fetch_jobs(request: HttpRequest, response: HttpResponse, wanted: FetchIn) -> Answer:
    """Start jobs for a worker (FETCH)."""
    access = access_of(request)
    access.require("fetch", *wanted.queues)
    if wanted.worker_id is not None:
        _need_worker(access, wanted.worker_id)
    if celery_queues := assign_queues(wanted.queues):
        message = f"Queue {celery_queues[0]!r} is served by Celery; its jobs can't be fetched."
        raise Problem(422, "unsupported", message, details={"field": "queues", "queues": celery_queues})
    wait = from_milliseconds(wanted.wait_ms) or timedelta(0)
    with reserve_wait(request, wait) as granted:
        fetched = fetch.fetch(
            FetchRequest(
                queues=_in_order(wanted),
                worker=wanted.worker_id,
                count=wanted.count or 1,
                lease=from_milliseconds(wanted.visibility_timeout_ms),
                wait=granted,
                who=access,
                is_allowed=access.is_valid,
            )
        )
    jobs = [{**write_job(call), "ticket": str(call.ticket)} for call in fetched]
    if not jobs and granted != wait:
        response["Retry-After"] = "1"
    return {"jobs": jobs}


@router.post("/workers/ack", response=replies(AckReply))
def ack(request: HttpRequest, done: AckIn) -> Answer:
    """Record that a job is completed (ACK). A result that is too large is refused, and the job goes on."""
    call = _allowed(request, done)
    if (size := json_size(done.result)) > (most := conf().max_payload_bytes):
        message = (
            f"result: takes {size} bytes, over max_payload_bytes ({most}); store it elsewhere and send a reference."
        )
        raise Problem(413, "invalid_request", message, details={"field": "result"})
    ended = worker_reports.ack(call, result=done.result, **proof(done))
    if isinstance(ended, RejectedReport):
        raise rejected(ended, done.job_id)
    advance_after(ended)
    return {"acknowledged": True, **_ended(ended), "completed_at": ended.finished_at}


@router.post("/workers/nack", response=replies(NackReply))
def nack(request: HttpRequest, failed: NackIn) -> Answer:
    """Record that an attempt failed (FAIL), that the provider is rate limiting, or that the worker returns the job."""
    call = _allowed(request, failed)
    error, more = failed.error, {}
    if failed.requeue:
        ended = worker_reports.requeue(call, **proof(failed))
    elif until := parse_time("error.rate_limit_until", error.rate_limit_until):
        access = access_of(request)
        wait = _stop_time(access, until)
        ended = worker_reports.report_rate_limit(call, wait, **proof(failed), by=access.actor(error.message[:_REASON]))
        more = {"rate_limit_until": sql.now() + wait}
    else:
        is_final = error.retryable is False or error.code in _FINAL_CODES
        is_retry = error.code == "RETRY"
        may_retry = False if is_final and not is_retry else None
        ended = worker_reports.nack(call, _reported(failed), may_retry=may_retry, **proof(failed))
    if isinstance(ended, RejectedReport):
        raise rejected(ended, failed.job_id)
    advance_after(ended)
    written = write_job(ended)
    names = ("attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "discarded_at", "completed_at")
    return {**_ended(ended), **{name: written[name] for name in names if name in written}, **more}


@router.post("/workers/heartbeat", response=replies(HeartbeatReply))
def heartbeat(request: HttpRequest, beat: HeartbeatIn) -> Answer:
    """Renew the leases of a worker's jobs, and return its directive (BEAT)."""
    access = access_of(request)
    if not any(scope.partition(":")[0] in ("fetch", "admin") for scope in access.scopes):
        access.require("fetch")
    given = [*(beat.active_job_ids or []), *(beat.active_jobs if isinstance(beat.active_jobs, list) else [])]
    calls = [parse_id("job", each) for each in given]
    if not access.allows("fetch"):
        _need_worker(access, beat.worker_id)
        queues = CallQueue.objects.filter(id__in=calls).values_list("id", "queue")
        calls = [call for call, queue in queues if access.allows("fetch", queue)]
    lease = from_milliseconds(beat.visibility_timeout_ms)
    result = pull_workers.heartbeat(beat.worker_id, calls, lease=lease, state=beat.state)
    extended = [str(call) for call in result.kept]
    return {"state": result.directive, "jobs_extended": extended, "server_time": sql.now()}


@router.post("/workers/beat")
def beat(request: HttpRequest, beat: HeartbeatIn) -> Answer:
    """Accept a heartbeat of the graceful-shutdown extension: a draining worker gets no more jobs."""
    if beat.state in _DRAINING:
        _need_worker(access_of(request), beat.worker_id, has_fetched=True)
    body = heartbeat(request, beat)
    if beat.state in _DRAINING:
        pull_workers.set_directive(beat.worker_id, _DRAINING[beat.state])
    return {**body, "acknowledged": True}


@router.get("/workers/{worker_id}/health", response=replies() | {503: Reply}, auth=READ)
def health(request: HttpRequest, worker_id: str) -> Status[Answer]:
    """Show the state that a worker reported; 503 once it drains."""
    worker = pull_workers.find(worker_id)
    body = {"worker_id": worker.name, "state": worker.state, "last_heartbeat_at": worker.seen_at}
    return Status(200 if (worker.state, worker.directive) == ("running", "running") else 503, body)


def proof(report: Proof) -> worker_reports.Proof:
    """Return the proof in a report. Raises Problem."""
    ticket = None if report.ticket is None else parse_id("ticket", report.ticket)
    return {"ticket": ticket, "attempt": report.attempt, "worker": report.worker_id}


def rejected(report: RejectedReport, job_id: str) -> Problem:
    """Return the problem of a report by a worker that does not hold the job."""
    if report.state is None:
        return missing("job", job_id)
    state = ojs_state(report.state)
    message = f"The job is {state}, not active."
    if report.is_anothers:
        message = "The job is another worker's, or in another attempt. Report with the ticket of the fetch."
    elif report.state in (State.ACTIVE, State.DISPATCHED):
        message = "The job runs in Celery, and can't be reported on over HTTP."
    return conflict(message, job_id=job_id, current_state=state, expected_state="active")


def _in_order(wanted: FetchIn) -> list[str]:
    """Return the queues in the order of the pool, which overrides the request's strategy."""
    pool = Pool.objects.filter(name=wanted.pool).first() if wanted.pool else None
    if pool is not None:
        return ordered([queue for queue in wanted.queues if queue in pool.weights], pool.strategy, pool.weights)
    return ordered(wanted.queues, wanted.strategy or "strict", wanted.weights or {})


def _need_worker(access: Access, worker: str, *, has_fetched: bool = False) -> None:
    """Raise Problem unless the credentials may fetch from all queues that a worker last fetched from.

    has_fetched: a worker that has not fetched yet needs the right to fetch from every queue.
    """
    if access.allows("fetch"):
        return
    known = PullWorker.objects.filter(id=pull_workers.worker_id(worker))
    queues = known.values_list("queues", flat=True).first() or []
    if access.is_known and not all(access.allows("fetch", queue) for queue in queues):
        message = (
            f"Worker {worker!r} last fetched from queues that these credentials do not allow: choose another worker_id."
        )
        raise Problem(403, "permission_denied", message, details={"field": "worker_id"})
    if queues or has_fetched:
        access.require("fetch", *queues)


def _allowed(request: HttpRequest, report: Report) -> ReservedCall:
    """Return the call of a report, if the credentials may fetch from its queue."""
    if (held := worker_reports.find(parse_id("job", report.job_id))) is None:
        raise missing("job", report.job_id)
    access_of(request).require("fetch", held.queue)
    return held


def _stop_time(access: Access, until: datetime) -> timedelta:
    """Return how long a report may block the keys of its job: bounded, unless it comes from `admin`."""
    longest = LONGEST_PERIOD if access.allows("admin") else conf().http_max_block
    return min(max(until - sql.now(), run.SHORTEST_STOP), longest)


def _reported(failed: NackIn) -> Reported:
    error, details = failed.error, failed.error.details or {}
    kind = error.type or details.get("error_class") or error.code or "handler_error"
    given = {"code": error.code or "handler_error", "details": error.details, "backtrace": error.backtrace}
    more = without_nulls({**given_fields(error), **given})
    if (size := json_size(more)) > MAX_META_BYTES:
        more = {"code": given["code"], "details": f"{size} bytes, not kept"}
    classes = [str(name) for name in (error.type, details.get("error_class"), error.code) if name]
    return Reported(type=str(kind)[:255], message=error.message, classes=classes, more=more)


def _ended(call: CallQueue) -> Answer:
    return {"id": str(call.id), "job_id": str(call.id), "state": ojs_state(call.state)}
