"""The administrators' endpoints (ojs-admin-api, ojs-backpressure, ojs-fair-scheduling)."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import arrow
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import engine, pull, sql
from dispatcher.conf import conf
from dispatcher.models import CallQueue, PullWorker, Queue, Slot, Worker
from dispatcher.push import shown
from dispatcher.states import IN_FLIGHT, TERMINAL, OnFull, State
from dispatcher.web.ojs import envelope
from dispatcher.web.ojs.api import access_of
from dispatcher.web.ojs.bodies import BulkIn, Confirmed, PurgeIn, QueueConfigIn, plain
from dispatcher.web.ojs.pages import page
from dispatcher.web.ojs.queues import known_queues, queue_name
from dispatcher.web.ojs.replies import ItemsReply, replies
from dispatcher.web.ojs.views import letters, queues
from dispatcher.web.ojs.views.jobs import cancelled, find
from dispatcher.web.ojs.views.limits import store
from dispatcher.web.ojs.wire import answer, conflict, invalid, missing, nothing, read_moment, stamp

router = Router(tags=["admin"])

_SILENT = timedelta(seconds=30)
"""A worker that was not heard of for so long is stale (ojs-worker-protocol)."""
_MOST = 1_000
"""How many jobs one bulk call takes."""
_NOT_STARTED: Final = [state for state in State if state not in (State.ACTIVE, *TERMINAL)]
_MOVABLE: Final = {"retry": TERMINAL, "cancel": _NOT_STARTED, "delete": TERMINAL}
"""What can be done to many jobs, and from which states."""


@router.get("/admin/stats", response=replies(), summary="The whole server in numbers")
def stats(request: HttpRequest) -> HttpResponse:
    """Count queues, workers and jobs."""
    access_of(request).need("read")
    database = conf().database
    minute = arrow.utcnow().shift(minutes=-1).datetime
    ended = CallQueue.objects.using(database).filter(finished_at__gt=minute)
    by_state = CallQueue.objects.using(database).values_list("state").annotate(calls=Count("id"))
    jobs = {str(state): 0 for state in State if state is not State.DISPATCHED}
    for state, calls in by_state:
        jobs[shown(state)] += calls
    throughput = {
        "processed_per_minute": ended.filter(state=State.COMPLETED).count(),
        "failed_per_minute": ended.filter(state=State.DISCARDED).count(),
    }
    workers = _live().count() + Worker.objects.using(database).filter(serves_until__gt=arrow.utcnow().datetime).count()
    known = Queue.objects.using(database).count()
    return answer({"queues": known, "workers": workers, "jobs": jobs, "throughput": throughput})


@router.get("/admin/queues", response=replies(ItemsReply), summary="The queues in numbers")
def listed_queues(request: HttpRequest) -> HttpResponse:
    """List the queues, with how many jobs of each stand where."""
    access_of(request).need("read")
    found = page(request, Queue.objects.using(conf().database).order_by("name"), usual=20)
    paused = queues.paused_of([queue.name for queue in found.rows])
    items = [_queue(queue, is_paused=queue.name in paused) for queue in found.rows]
    return answer({"items": items, "pagination": found.pagination})


@router.get("/admin/queues/{name}", response=replies(), summary="A queue in numbers")
def shown_queue(request: HttpRequest, name: str) -> HttpResponse:
    """Show a queue, and what is set for it."""
    access_of(request).need("read")
    return answer(_shown_queue(name))


@router.post("/admin/queues/{name}/pause", response=replies(), summary="Pause a queue")
def pause(request: HttpRequest, name: str) -> HttpResponse:
    """Let nothing of a queue start; what runs goes on."""
    access_of(request).need("admin")
    return answer(queues.paused(name, by=access_of(request).name))


@router.post("/admin/queues/{name}/resume", response=replies(), summary="Resume a queue")
def resume(request: HttpRequest, name: str) -> HttpResponse:
    """Let a queue go on."""
    access_of(request).need("admin")
    return answer(queues.resumed(name, by=access_of(request).name))


@router.put("/admin/queues/{name}/config", response=replies(), summary="Set a queue up")
def configure(request: HttpRequest, name: str, wanted: QueueConfigIn) -> HttpResponse:
    """Bound a queue, limit it, or say who serves it: all that is asked for, or nothing."""
    access_of(request).need("admin")
    limits = _limits(wanted)
    with sql.atomic():
        known_queues([queue_name(name)])
        _set_up(Queue.objects.using(conf().database).get(name=name), wanted)
        keys = [store(name, limits)] if limits else []
    engine.dispense(queues=[name], keys=keys)
    return answer(_shown_queue(name))


@router.delete("/admin/queues/{name}/jobs", response=replies(), summary="Delete the ended jobs of a queue")
def purge(request: HttpRequest, name: str, wanted: PurgeIn) -> HttpResponse:
    """Cancel the waiting jobs of a queue, and delete its ended ones, as `states` say; up to 1,000 of each at a time.

    With `older_than` only what ended before goes; what waits has not ended.
    """
    access_of(request).need("admin")
    _confirm(wanted)
    calls = CallQueue.objects.using(conf().database).filter(queue=name, state__in=wanted.states)
    ended = calls.filter(state__in=TERMINAL)
    waiting: list[UUID] = []
    if before := read_moment("older_than", wanted.older_than):
        ended = ended.filter(finished_at__lt=before)
    else:
        waiting = _oldest(calls.filter(state__in=_NOT_STARTED))
    count = len(engine.cancel(waiting))
    ended = ended.exclude(id__in=waiting)
    count += ended.filter(id__in=_oldest(ended)).delete()[0]
    return answer({"purged_count": count, "states": wanted.states})


@router.get("/admin/jobs", response=replies(ItemsReply), summary="The jobs")
def jobs(request: HttpRequest) -> HttpResponse:
    """List jobs, latest first: of a `queue`, in a `state`, of a `type` (or `prefix*`), `since` and `until`."""
    access_of(request).need("read")
    found = page(request, _filtered(request.GET.dict()).order_by("-id"), usual=20)
    return answer({"items": [envelope.write(call) for call in found.rows], "pagination": found.pagination})


@router.post("/admin/jobs/bulk/{action}", response=replies(), summary="Retry, cancel or delete many jobs")
def bulk(request: HttpRequest, action: str, wanted: BulkIn) -> HttpResponse:
    """Retry, cancel or delete those of the jobs that the filter names that can be; the 1,000 oldest at a time."""
    access_of(request).need("admin")
    _confirm(wanted)
    if action not in _MOVABLE:
        raise missing("action", action)
    if wanted.filter is None:
        raise invalid("filter", "must say which jobs; {} means all.")
    movable = _filtered(plain(wanted.filter)).filter(state__in=_MOVABLE[action])
    matched = _oldest(movable)
    if action == "retry":
        done = len(engine.retry(matched))
    elif action == "cancel":
        done = len(engine.cancel(matched))
    else:
        done = movable.filter(id__in=matched).delete()[0]
    told = {"action": action, "matched": len(matched), "succeeded": done, "failed": len(matched) - done, "errors": []}
    return answer(told)


@router.get("/admin/jobs/{job_id}", response=replies(), summary="A job")
def job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a job."""
    call = find(job_id)
    access_of(request).need("read", call.queue)
    return answer(envelope.write(call))


@router.post("/admin/jobs/{job_id}/cancel", response=replies(), summary="Cancel a job")
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """End a job."""
    access_of(request).need("admin")
    return answer(envelope.write(cancelled(find(job_id))))


@router.post("/admin/jobs/{job_id}/retry", response=replies(), summary="Try an ended job again")
def retry(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let an ended job wait again, from attempt 0."""
    access_of(request).need("admin")
    call = find(job_id)
    if not engine.retry([call.id]):
        message = f"Only jobs that have ended can be tried again; this one is {shown(call.state)}."
        raise conflict(message, job_id=job_id, current_state=shown(call.state))
    return answer(envelope.write(find(job_id)))


@router.get("/admin/workers", response=replies(ItemsReply), summary="The workers")
def workers(request: HttpRequest) -> HttpResponse:
    """List the workers that fetch over HTTP."""
    access_of(request).need("read")
    found = page(request, PullWorker.objects.using(conf().database).order_by("name"), usual=20)
    known = list(PullWorker.objects.using(conf().database).values_list("directive", "seen_at"))
    stale = arrow.utcnow().datetime - _SILENT
    summary = {
        "total": len(known),
        "running": sum(directive == "running" and seen_at > stale for directive, seen_at in known),
        "quiet": sum(directive != "running" and seen_at > stale for directive, seen_at in known),
        "stale": sum(seen_at <= stale for _, seen_at in known),
    }
    return answer({"items": [_worker(each) for each in found.rows], "summary": summary, "pagination": found.pagination})


@router.get("/admin/workers/{worker_id}", response=replies(), summary="A worker")
def worker(request: HttpRequest, worker_id: str) -> HttpResponse:
    """Show a worker, and the jobs that it holds."""
    access_of(request).need("read")
    held = Slot.objects.using(conf().database).filter(worker_id=pull.number(worker_id), pulled_until__isnull=False)
    calls = [str(call) for call in sorted(set(held.values_list("call_id", flat=True)))]
    return answer({**_worker(_find(worker_id)), "jobs": calls})


@router.post("/admin/workers/{worker_id}/{directive}", response=replies(), summary="Tell a worker what to do")
def direct(request: HttpRequest, worker_id: str, directive: str) -> HttpResponse:
    """Have a worker told by its next heartbeat to go on (`running`), to be `quiet` or to `terminate`."""
    access_of(request).need("admin")
    if directive not in ("running", "quiet", "terminate"):
        raise missing("directive", directive)
    if not pull.direct(worker_id, directive):
        raise missing("worker", worker_id)
    return answer(_worker(_find(worker_id)))


@router.get("/admin/dead-letter", response=replies(ItemsReply), summary="The dead letters")
def dead_letters(request: HttpRequest) -> HttpResponse:
    """List the dead letters."""
    access_of(request).need("read")
    found = page(request, letters.dead(request), usual=20)
    return answer({"items": [envelope.write(call) for call in found.rows], "pagination": found.pagination})


@router.get("/admin/dead-letter/stats", response=replies(), summary="How many dead letters there are")
def dead_letter_stats(request: HttpRequest) -> HttpResponse:
    """Count the dead letters."""
    access_of(request).need("read")
    return answer(letters.counted())


@router.post("/admin/dead-letter/{job_id}/retry", response=replies(), summary="Try a dead letter again")
def retry_letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let a dead letter wait again."""
    access_of(request).need("admin")
    return answer(letters.retried(letters.find(job_id)))


@router.delete("/admin/dead-letter/{job_id}", response=replies(None, 204), summary="Delete a dead letter")
def delete_letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Delete a dead letter for good."""
    access_of(request).need("admin")
    letters.deleted(letters.find(job_id))
    return nothing()


def _set_up(queue: Queue, wanted: QueueConfigIn) -> None:
    if (pressure := wanted.backpressure) is not None:
        queue.max_depth = pressure.max_depth or None
        queue.on_full = OnFull(pressure.strategy or OnFull.REJECT)
        queue.warn_at = queue.warn_at if pressure.warning_threshold is None else pressure.warning_threshold
    if wanted.is_pulled is not None and wanted.is_pulled != queue.is_pulled:
        if CallQueue.objects.using(conf().database).filter(queue=queue.name, state__in=IN_FLIGHT).exists():
            message = "Jobs of this queue are with the workers that serve it now; wait until they have ended."
            raise conflict(message, queue=queue.name)
        queue.is_pulled = wanted.is_pulled
    queue.save()


def _confirm(confirmed: Confirmed) -> None:
    if confirmed.confirm is not True:
        raise invalid("confirm", "must be true: this is done to many jobs at once.")


def _oldest(calls: QuerySet[CallQueue]) -> list[UUID]:
    """Return as many of these calls as one request takes: the oldest, so that asking again gets on."""
    return list(calls.order_by("created_at", "id").values_list("id", flat=True)[:_MOST])


def _filtered(given: dict[str, str]) -> QuerySet[CallQueue]:
    calls = CallQueue.objects.using(conf().database).all()
    if queue := given.get("queue"):
        calls = calls.filter(queue=queue)
    if state := given.get("state"):
        if state not in [*State]:
            raise invalid("state", f"{state!r} must be one of {', '.join(State)}.")
        calls = calls.filter(state__in=["active", "dispatched"] if state == State.ACTIVE else [state])
    if kind := given.get("type"):
        calls = calls.filter(task__startswith=kind[:-1]) if kind.endswith("*") else calls.filter(task=kind)
    for name, lookup in (("since", "created_at__gte"), ("until", "created_at__lte")):
        if at := read_moment(name, given.get(name)):
            calls = calls.filter(**{lookup: at})
    return calls


def _limits(wanted: QueueConfigIn) -> dict[str, Any]:
    """Return the limits that a configuration names, None for those to be taken away. Raises Problem."""
    given = {} if wanted.concurrency is None else {"concurrency": wanted.concurrency}
    if wanted.rate_limit is None:
        return given
    named = wanted.rate_limit.named()
    if not named:
        raise invalid("rate_limit", "name limit and period, or one of concurrency, rate and throttle.")
    if given.keys() & named.keys():
        raise invalid("rate_limit.concurrency", "concurrency stands beside rate_limit, too; give it once.")
    return given | named


def _queue(queue: Queue, *, is_paused: bool) -> dict[str, Any]:
    counts = asdict(queues.counted(queue.name))
    named = ("available", "active", "scheduled", "retryable", "completed", "discarded", "cancelled")
    return {
        "name": queue.name,
        "state": "paused" if is_paused else "active",
        "paused": is_paused,
        "served_by": "http" if queue.is_pulled else "celery",
        "counts": {name: counts[name] for name in named},
        "throughput": {
            "processed_per_minute": counts["completed_last_minute"],
            "failed_per_minute": counts["failed_last_minute"],
        },
        "created_at": stamp(queue.created_at),
    }


def _shown_queue(name: str) -> dict[str, Any]:
    queue = Queue.objects.using(conf().database).filter(name=name).first()
    if queue is None:
        raise missing("queue", name)
    pressure = {"max_depth": queue.max_depth or 0, "strategy": queue.on_full, "warning_threshold": queue.warn_at}
    told = _queue(queue, is_paused=name in queues.paused_of([name]))
    return {**told, "configuration": {"backpressure": pressure, "is_pulled": queue.is_pulled}}


def _live() -> QuerySet[PullWorker]:
    return PullWorker.objects.using(conf().database).filter(seen_at__gt=arrow.utcnow().datetime - _SILENT)


def _find(worker_id: str) -> PullWorker:
    found = PullWorker.objects.using(conf().database).filter(id=pull.number(worker_id)).first()
    if found is None:
        raise missing("worker", worker_id)
    return found


def _worker(each: PullWorker) -> dict[str, Any]:
    held = Slot.objects.using(conf().database).filter(worker_id=each.id, pulled_until__isnull=False)
    return {
        "id": each.name,
        "state": each.state,
        "directive": each.directive,
        "queues": each.queues,
        "active_jobs": held.values("call_id").distinct().count(),
        "started_at": stamp(each.started_at),
        "last_heartbeat_at": stamp(each.seen_at),
    }
