"""Workers: they fetch, report, and say that they live (ojs-http-binding, section 10; ojs-worker-protocol)."""

import logging
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ending import Reported
from dispatcher.lifecycle import run
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import CallQueue, Pool, PullWorker
from dispatcher.ojs import envelope, workflows
from dispatcher.ojs import fetch as pull
from dispatcher.ojs.access import Access
from dispatcher.ojs.api import access_of
from dispatcher.ojs.bodies import AckIn, BeatIn, FetchIn, NackIn, Proof, Report, plain
from dispatcher.ojs.enqueue import shown
from dispatcher.ojs.envelope import LARGEST_META, json_size
from dispatcher.ojs.fetch import Fetching, Held, Refused
from dispatcher.ojs.order import ordered
from dispatcher.ojs.replies import Acknowledged, Directive, Failed, JobsReply, Reply, replies
from dispatcher.ojs.waiting import RETRY_AFTER, place
from dispatcher.ojs.wire import Problem, answer, conflict, missing, read_id, read_moment, stamp, without_nulls
from dispatcher.states import TERMINAL, State

logger = logging.getLogger(__name__)

router = Router(tags=["workers"])

_FINAL_CODES = ("DISCARD", "FAIL", "DEAD_LETTER", "NON_RETRYABLE_ERROR")
_REASON: Final = 200
"""How much of a worker's message the history keeps."""
_DRAINING = {"drain": "quiet", "draining": "quiet", "quiet": "quiet", "terminate": "terminate"}


@router.post("/workers/fetch", response=replies(JobsReply), summary="FETCH")
def fetch(request: HttpRequest, asked: FetchIn) -> HttpResponse:
    """Start jobs for a worker."""
    access = access_of(request)
    access.need("fetch", *asked.queues)
    if asked.worker_id is not None:
        _need_worker(access, asked.worker_id)
    if celerys := pull.take_queues(asked.queues):
        message = f"Queue {celerys[0]!r} is served by Celery; its jobs can't be fetched."
        raise Problem(422, "unsupported", message, details={"field": "queues", "queues": celerys})
    wait = envelope.milliseconds(asked.wait_ms) or timedelta(0)
    with place(request, wait) as granted:
        fetched = pull.fetch(
            Fetching(
                queues=_in_order(asked),
                worker=asked.worker_id,
                count=asked.count or 1,
                lease=envelope.milliseconds(asked.visibility_timeout_ms),
                wait=granted,
                who=access,
                is_allowed=access.holds,
            )
        )
    jobs = [envelope.fetched(call) for call in fetched]
    return answer({"jobs": jobs}, headers=None if jobs or granted == wait else RETRY_AFTER)


@router.post("/workers/ack", response=replies(Acknowledged), summary="ACK")
def ack(request: HttpRequest, done: AckIn) -> HttpResponse:
    """Record that a job is done."""
    ended = pull.ack(_allowed(request, done), result=done.result, **proof(done))
    if isinstance(ended, Refused):
        raise refused(ended, done.job_id)
    _advance(ended)
    body = {"acknowledged": True, "id": str(ended.id), "job_id": str(ended.id), "state": shown(ended.state)}
    return answer({**body, "completed_at": stamp(ended.finished_at)})


@router.post("/workers/nack", response=replies(Failed), summary="FAIL")
def nack(request: HttpRequest, failed: NackIn) -> HttpResponse:
    """Record that an attempt failed, that the provider said stop, or that the worker gives the job back."""
    call = _allowed(request, failed)
    error, more = failed.error, {}
    if failed.requeue:
        ended = pull.give_back(call, **proof(failed))
    elif until := read_moment("error.rate_limit_until", error.rate_limit_until):
        access = access_of(request)
        wait = _stop_time(access, until)
        ended = pull.stop(call, wait, **proof(failed), by=access.actor(error.message[:_REASON]))
        more = {"rate_limit_until": stamp(sql.now() + wait)}
    else:
        is_final = error.retryable is False or error.code in _FINAL_CODES
        is_retry = error.code == "RETRY"
        may_retry = False if is_final and not is_retry else None
        ended = pull.nack(call, _reported(failed), may_retry=may_retry, **proof(failed))
    if isinstance(ended, Refused):
        raise refused(ended, failed.job_id)
    _advance(ended)
    return answer({**_failed(ended), **more})


@router.post("/workers/heartbeat", response=replies(Directive), summary="BEAT")
def heartbeat(request: HttpRequest, beat: BeatIn) -> HttpResponse:
    """Renew the leases of a worker's jobs, and tell it what to do."""
    return answer(_beaten(request, beat))


@router.post("/workers/beat", response=replies(), summary="BEAT of a worker that drains")
def beat(request: HttpRequest, beat: BeatIn) -> HttpResponse:
    """Take a heartbeat as the graceful-shutdown extension sends it: who drains is given no more jobs."""
    if beat.state in _DRAINING:
        _need_worker(access_of(request), beat.worker_id, has_fetched=True)
    body = _beaten(request, beat)
    if beat.state in _DRAINING:
        pull.direct(beat.worker_id, _DRAINING[beat.state])
    return answer({**body, "acknowledged": True})


@router.get("/workers/{worker_id}/health", response={**replies(), 503: Reply}, summary="How a worker is")
def health(request: HttpRequest, worker_id: str) -> HttpResponse:
    """Show what a worker said of itself; 503 from when it drains."""
    access_of(request).need("read")
    worker = PullWorker.objects.using(conf().database).filter(id=pull.number(worker_id)).first()
    if worker is None:
        raise missing("worker", worker_id)
    is_well = worker.state == "running" and worker.directive == "running"
    return answer(
        {"worker_id": worker.name, "state": worker.state, "last_heartbeat_at": stamp(worker.seen_at)},
        200 if is_well else 503,
    )


def proof(said: Proof) -> pull.Proof:
    """Return what shows that it is the holder of a job who speaks of it. Raises Problem."""
    ticket = None if said.ticket is None else read_id("ticket", said.ticket)
    return {"ticket": ticket, "attempt": said.attempt, "worker": said.worker_id}


def refused(left: Refused, job_id: str) -> Problem:
    """Return the problem that somebody speaks of a job who does not hold it."""
    if left.state is None:
        return missing("job", job_id)
    state = shown(left.state)
    message = f"The job is {state}, not active."
    if left.is_anothers:
        message = "The job is another worker's by now, or in another attempt. Report with the ticket of the fetch."
    elif left.state in (State.ACTIVE, State.DISPATCHED):
        message = "The job runs in Celery, and can't be reported on over HTTP."
    return conflict(message, job_id=job_id, current_state=state, expected_state="active")


def _in_order(asked: FetchIn) -> list[str]:
    """Return the queues in the order of the pool, which wins over what the request says, or else as it says."""
    pool = Pool.objects.using(conf().database).filter(name=asked.pool).first() if asked.pool else None
    if pool is not None:
        return ordered([queue for queue in asked.queues if queue in pool.weights], pool.strategy, pool.weights)
    return ordered(asked.queues, asked.strategy or "strict", asked.weights or {})


def _need_worker(access: Access, worker: str, *, has_fetched: bool = False) -> None:
    """Raise Problem unless all queues that a worker last fetched from may be fetched from.

    has_fetched: a worker that has not fetched yet takes the right to fetch from every queue.
    """
    if access.allows("fetch"):
        return
    known = PullWorker.objects.using(conf().database).filter(id=pull.number(worker))
    queues = known.values_list("queues", flat=True).first() or []
    if access.is_known and not all(access.allows("fetch", queue) for queue in queues):
        message = (
            f"Worker {worker!r} last fetched from queues that these credentials do not allow: choose another worker_id."
        )
        raise Problem(403, "permission_denied", message, details={"field": "worker_id"})
    if queues or has_fetched:
        access.need("fetch", *queues)


def _beaten(request: HttpRequest, beat: BeatIn) -> dict[str, Any]:
    access = access_of(request)
    if not any(scope.partition(":")[0] in ("fetch", "admin") for scope in access.scopes):
        access.need("fetch")
    given = [*(beat.active_job_ids or []), *(beat.active_jobs if isinstance(beat.active_jobs, list) else [])]
    calls = [read_id("job", each) for each in given]
    if not access.allows("fetch"):
        _need_worker(access, beat.worker_id)
        queues = CallQueue.objects.using(conf().database).filter(id__in=calls).values_list("id", "queue")
        calls = [call for call, queue in queues if access.allows("fetch", queue)]
    lease = envelope.milliseconds(beat.visibility_timeout_ms)
    heard = pull.beat(beat.worker_id, calls, lease=lease, state=beat.state)
    extended = [str(call) for call in heard.kept]
    return {"state": heard.directive, "jobs_extended": extended, "server_time": stamp(sql.now())}


def _advance(call: CallQueue) -> None:
    """Do what follows in the workflow of a job that has ended; what fails of it, the next look of beat's does."""
    workflow = workflows.of_call(call)
    if workflow is None or call.state not in TERMINAL:
        return
    try:
        workflows.advance(workflow)
    except Exception:  # the report itself is recorded, and stands
        logger.exception("workflow %s was not carried on", workflow)


def _allowed(request: HttpRequest, report: Report) -> Held:
    """Return the call that is reported on, if whoever asks may fetch of its queue."""
    held = pull.find(read_id("job", report.job_id))
    if held is None:
        raise missing("job", report.job_id)
    access_of(request).need("fetch", held.queue)
    return held


def _stop_time(access: Access, until: datetime) -> timedelta:
    """Return how long a report may stop the keys of its job: less than it asks for, unless it comes from `admin`."""
    longest = LONGEST_PERIOD if access.allows("admin") else conf().http_max_block
    return min(max(until - sql.now(), run.SHORTEST_STOP), longest)


def _reported(failed: NackIn) -> Reported:
    error, details = failed.error, failed.error.details or {}
    kind = error.type or details.get("error_class") or error.code or "handler_error"
    given = {"code": error.code or "handler_error", "details": error.details, "backtrace": error.backtrace}
    more = without_nulls({**plain(error), **given})
    if (size := json_size(more)) > LARGEST_META:
        more = {"code": given["code"], "details": f"{size} bytes, not kept"}
    classes = [str(name) for name in (error.type, details.get("error_class"), error.code) if name]
    return Reported(type=str(kind)[:255], message=error.message, classes=classes, more=more)


def _failed(call: CallQueue) -> dict[str, Any]:
    written = envelope.write(call)
    told = ("attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "discarded_at", "completed_at")
    kept = {name: written[name] for name in told if name in written}
    return {"id": str(call.id), "job_id": str(call.id), "state": shown(call.state), **kept}
