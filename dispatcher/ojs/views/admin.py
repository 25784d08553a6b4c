"""The administrators' endpoints (ojs-admin-api, ojs-backpressure, ojs-fair-scheduling)."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import api, engine, sql
from dispatcher.conf import conf
from dispatcher.engine.dispenser import serve_limited
from dispatcher.models import CallQueue, PullWorker, Queue, Slot, Worker
from dispatcher.ojs import fetch, job_query
from dispatcher.ojs.api import access_of
from dispatcher.ojs.enqueue import shown
from dispatcher.ojs.job import write_job
from dispatcher.ojs.job_query import MOST
from dispatcher.ojs.pagination import MANY, page
from dispatcher.ojs.queues import known_queues, queue_name
from dispatcher.ojs.requests import BulkIn, Confirmed, PauseIn, PurgeIn, QueueConfigIn, plain, reason_of
from dispatcher.ojs.responses import ItemsReply, replies
from dispatcher.ojs.views import queues
from dispatcher.ojs.views.dead_letters import (
    count_dead_letters,
    delete_dead_letter,
    find_dead_letter,
    find_page,
    retry_dead_letter,
)
from dispatcher.ojs.views.jobs import cancelled, find
from dispatcher.ojs.views.rate_limits import store
from dispatcher.ojs.wire import answer, conflict, invalid, missing, nothing, read_moment, stamp, without_nulls
from dispatcher.states import IN_FLIGHT, TERMINAL, Delivery, OnFull, State

router = Router(tags=["admin"])


@dataclass(frozen=True, kw_only=True)
class _InState:
    state: str
    calls: int
    last_minute: int


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: UUID


_SILENT = timedelta(seconds=30)
"""A worker that was not heard of for so long is stale (ojs-worker-protocol)."""
_BATCH = 50
_BUDGET_S = 0.1
"""How long one request moves jobs: whoever asks for many goes on in further requests."""
"""How many of them one transaction locks."""
_NOT_STARTED: Final = [state for state in State if state not in (State.ACTIVE, *TERMINAL)]
_MOVABLE: Final = {"retry": TERMINAL, "cancel": _NOT_STARTED, "delete": TERMINAL}
"""What can be done to many jobs, and from which states."""


@router.get("/admin/stats", response=replies(), summary="The whole server in numbers")
def stats(request: HttpRequest) -> HttpResponse:
    """Count queues, workers and jobs; counts end at `counts_up_to`."""
    access_of(request).need("read")
    database = conf().database
    jobs = {str(state): 0 for state in State if state is not State.DISPATCHED}
    ended = dict.fromkeys(jobs, 0)
    for row in sql.fetch_in_order("count_states", _InState, {"most": MANY}):
        jobs[row.state] = min(jobs[row.state] + row.calls, MANY)
        ended[row.state] += row.last_minute
    throughput = {
        "processed_per_minute": ended[State.COMPLETED],
        "failed_per_minute": ended[State.DISCARDED],
    }
    celery = Worker.objects.using(database).filter(serves_until__gt=sql.now())
    workers = _live()[:MANY].count() + celery[:MANY].count()
    known = Queue.objects.using(database)[:MANY].count()
    told = {"queues": known, "workers": workers, "jobs": jobs, "throughput": throughput, "counts_up_to": MANY}
    return answer(told)


@router.get("/admin/queues", response=replies(ItemsReply), summary="The queues in numbers")
def listed_queues(request: HttpRequest) -> HttpResponse:
    """List the queues, with how many jobs of each stand where."""
    access_of(request).need("read")
    found = page(request, Queue.objects.using(conf().database).all(), order=["name"], usual=20)
    names = [queue.name for queue in found.rows]
    paused, counts = queues.paused_of(names), queues.counts_of(names)
    items = [_queue(queue, counts[queue.name], is_paused=queue.name in paused) for queue in found.rows]
    return answer({"items": items, "counts_up_to": queues.LISTED, "pagination": found.pagination})


@router.get("/admin/queues/{name}", response=replies(), summary="A queue in numbers")
def shown_queue(request: HttpRequest, name: str) -> HttpResponse:
    """Show a queue, and what is set for it."""
    access_of(request).need("read")
    return answer(_shown_queue(name))


@router.post("/admin/queues/{name}/pause", response=replies(), summary="Pause a queue")
def pause(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Let nothing of a queue start; what runs goes on."""
    access_of(request).need("admin")
    return answer(queues.paused(name, by=access_of(request).actor(reason_of(wanted))))


@router.post("/admin/queues/{name}/resume", response=replies(), summary="Resume a queue")
def resume(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Let a queue go on."""
    access_of(request).need("admin")
    return answer(queues.resumed(name, by=access_of(request).actor(reason_of(wanted))))


@router.put("/admin/queues/{name}/config", response=replies(), summary="Set a queue up")
def configure(request: HttpRequest, name: str, wanted: QueueConfigIn) -> HttpResponse:
    """Bound a queue, limit it, or say who serves it: all that is asked for, or nothing."""
    access_of(request).need("admin")
    limits = _limits(wanted)
    with sql.atomic():
        known_queues([queue_name(name)])
        _set_up(Queue.objects.using(conf().database).get(name=name), wanted)
        keys = [store(name, limits, by=access_of(request).actor())] if limits else []
    serve_limited(keys)
    engine.dispense_briefly(queues=[name])
    return answer(_shown_queue(name))


@router.delete("/admin/queues/{name}/jobs", response=replies(), summary="Delete the ended jobs of a queue")
def purge(request: HttpRequest, name: str, wanted: PurgeIn) -> HttpResponse:
    """Cancel the waiting jobs of a queue, and delete its ended ones, as `states` say; as many as 0.1 s allow.

    With `older_than` only what ended before goes; what waits has not ended. `has_more`: there may be others, ask again.
    """
    access_of(request).need("admin")
    _confirm(wanted)
    before = read_moment("older_than", wanted.older_than)
    ended = job_query.ended_of(name, [state for state in wanted.states if state in TERMINAL], before)
    states = sorted({*map(str, _NOT_STARTED)}.intersection(wanted.states))
    params = {"queue": name, "states": states, "most": MOST}
    waiting = [] if before or not states else [row.id for row in sql.fetch("find_cancellable", _Found, params)]
    until = monotonic() + _BUDGET_S
    tried, cancelled_count = _by_batches(waiting, api.cancel, until)
    tried_ended, deleted_count = _by_batches(ended, _delete, until)
    has_more = (tried, tried_ended) != (len(waiting), len(ended)) or MOST in (tried, tried_ended)
    return answer({"purged_count": cancelled_count + deleted_count, "states": wanted.states, "has_more": has_more})


@router.get("/admin/jobs", response=replies(ItemsReply), summary="The jobs")
def jobs(request: HttpRequest) -> HttpResponse:
    """List jobs, latest first: of a `queue`, in a `state`, of a `type` (or `prefix*`), `since` and `until`.

    Those that wait for their time come by queue and time, pending ones by queue. One page looks through 10,000 jobs: it
    may hold fewer than asked for. Go on while there is a `next_cursor`.
    """
    access_of(request).need("read")
    given = request.GET.dict()
    rows, order, among = job_query.listed(given)
    found = page(request, rows, order=order, among=among, usual=20)
    return answer({"items": [write_job(call) for call in found.rows], "pagination": found.pagination})


@router.post("/admin/jobs/bulk/{action}", response=replies(), summary="Retry, cancel or delete many jobs")
def bulk(request: HttpRequest, action: str, wanted: BulkIn) -> HttpResponse:
    """Retry, cancel or delete those of the jobs that the filter names that can be, the oldest first, for 0.1 s.

    With `has_more`, send the request again with its `next_cursor` as `cursor`: it goes on behind those.
    """
    access_of(request).need("admin")
    _confirm(wanted)
    if action not in _MOVABLE:
        raise missing("action", action)
    if wanted.filter is None:
        raise invalid("filter", "must say which jobs; {} means all.")
    movable = job_query.filtered(plain(wanted.filter)).filter(state__in=_MOVABLE[action])
    matched, next_cursor = job_query.oldest(movable, wanted.cursor)
    move = {"retry": api.retry, "cancel": api.cancel, "delete": _delete}[action]
    tried, done = _by_batches(matched, move, monotonic() + _BUDGET_S)
    if tried < len(matched):
        next_cursor = job_query.cursor_behind(matched[tried - 1])
    told = {"action": action, "matched": tried, "succeeded": done, "failed": tried - done, "errors": []}
    more = {"has_more": next_cursor is not None, "next_cursor": next_cursor}
    return answer(without_nulls({**told, **more}))


@router.get("/admin/jobs/{job_id}", response=replies(), summary="A job")
def job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a job."""
    call = find(job_id)
    access_of(request).need("read", call.queue)
    return answer(write_job(call))


@router.post("/admin/jobs/{job_id}/cancel", response=replies(), summary="Cancel a job")
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """End a job."""
    access_of(request).need("admin")
    return answer(write_job(cancelled(find(job_id))))


@router.post("/admin/jobs/{job_id}/retry", response=replies(), summary="Try an ended job again")
def retry(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let an ended job wait again, from attempt 0."""
    access_of(request).need("admin")
    call = find(job_id)
    if not api.retry([call.id]):
        message = f"Only jobs that have ended can be tried again; this one is {shown(call.state)}."
        raise conflict(message, job_id=job_id, current_state=shown(call.state))
    return answer(write_job(find(job_id)))


@router.get("/admin/workers", response=replies(ItemsReply), summary="The workers")
def workers(request: HttpRequest) -> HttpResponse:
    """List the workers that fetch over HTTP."""
    access_of(request).need("read")
    found = page(request, PullWorker.objects.using(conf().database).all(), order=["name"], usual=20)
    is_live, is_running = Q(seen_at__gt=sql.now() - _SILENT), Q(directive="running")
    # The latest seen, if there are more.
    summary = (
        PullWorker.objects.using(conf().database)
        .order_by("-seen_at")[:MANY]
        .aggregate(
            total=Count("id"),
            running=Count("id", filter=is_live & is_running),
            quiet=Count("id", filter=is_live & ~is_running),
            stale=Count("id", filter=~is_live),
        )
    )
    items = _workers(found.rows)
    return answer({"items": items, "summary": summary, "pagination": found.pagination})


@router.get("/admin/workers/{worker_id}", response=replies(), summary="A worker")
def worker(request: HttpRequest, worker_id: str) -> HttpResponse:
    """Show a worker, and the jobs that it holds."""
    access_of(request).need("read")
    held = Slot.objects.using(conf().database).filter(worker_id=fetch.number(worker_id), pulled_until__isnull=False)
    calls = [str(call) for call in sorted(set(held.values_list("call_id", flat=True)))]
    return answer({**_workers([_find(worker_id)])[0], "jobs": calls})


@router.post("/admin/workers/{worker_id}/{directive}", response=replies(), summary="Tell a worker what to do")
def direct(request: HttpRequest, worker_id: str, directive: str) -> HttpResponse:
    """Have a worker told by its next heartbeat to go on (`running`), to be `quiet` or to `terminate`."""
    access_of(request).need("admin")
    if directive not in ("running", "quiet", "terminate"):
        raise missing("directive", directive)
    if not fetch.direct(worker_id, directive):
        raise missing("worker", worker_id)
    return answer(_workers([_find(worker_id)])[0])


@router.get("/admin/dead-letter", response=replies(ItemsReply), summary="The dead letters")
def dead_letters(request: HttpRequest) -> HttpResponse:
    """List the dead letters."""
    access_of(request).need("read")
    found = find_page(request, usual=20)
    return answer({"items": [write_job(call) for call in found.rows], "pagination": found.pagination})


@router.get("/admin/dead-letter/stats", response=replies(), summary="How many dead letters there are")
def dead_letter_stats(request: HttpRequest) -> HttpResponse:
    """Count the dead letters."""
    access_of(request).need("read")
    return answer(count_dead_letters())


@router.post("/admin/dead-letter/{job_id}/retry", response=replies(), summary="Try a dead letter again")
def retry_letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let a dead letter wait again."""
    access = access_of(request)
    access.need("admin")
    return answer(retry_dead_letter(access, find_dead_letter(job_id)))


@router.delete("/admin/dead-letter/{job_id}", response=replies(None, 204), summary="Delete a dead letter")
def delete_letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Delete a dead letter for good."""
    access_of(request).need("admin")
    delete_dead_letter(find_dead_letter(job_id))
    return nothing()


def _set_up(queue: Queue, wanted: QueueConfigIn) -> None:
    if (pressure := wanted.backpressure) is not None:
        queue.max_depth = pressure.max_depth or None
        queue.on_full = OnFull(pressure.strategy or OnFull.REJECT)
        queue.warn_at = queue.warn_at if pressure.warning_threshold is None else pressure.warning_threshold
    if wanted.delivery is not None and wanted.delivery != queue.delivery:
        if CallQueue.objects.using(conf().database).filter(queue=queue.name, state__in=IN_FLIGHT).exists():
            message = "Jobs of this queue are with the workers that serve it now; wait until they have ended."
            raise conflict(message, queue=queue.name)
        queue.delivery = wanted.delivery
    queue.is_undecided &= wanted.delivery is None
    queue.save()


def _confirm(confirmed: Confirmed) -> None:
    if confirmed.confirm is not True:
        raise invalid("confirm", "must be true: this is done to many jobs at once.")


def _by_batches(calls: Sequence[UUID], move: Callable[[list[UUID]], Sized], until: float) -> tuple[int, int]:
    """Move calls until a time, each batch in a transaction of its own; return how many were tried and moved."""
    tried = moved = 0
    while tried < len(calls) and (tried == 0 or monotonic() < until):
        batch = [*calls[tried : tried + _BATCH]]
        moved += len(move(batch))
        tried += len(batch)
    return tried, moved


def _delete(calls: Sequence[UUID]) -> range:
    """Delete those of these calls that have ended; a call that was retried meanwhile is left alone."""
    ended = CallQueue.objects.using(conf().database).filter(id__in=calls, state__in=TERMINAL)
    return range(ended.delete()[0])


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


def _queue(queue: Queue, numbers: queues.Counts, *, is_paused: bool) -> dict[str, Any]:
    counts = asdict(numbers)
    named = ("available", "active", "scheduled", "retryable", "completed", "discarded", "cancelled")
    return {
        "name": queue.name,
        "state": "paused" if is_paused else "active",
        "paused": is_paused,
        "served_by": "http" if queue.delivery == Delivery.HTTP else "celery",
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
    counts = queues.counts_of([name], most=MANY)[name]
    told = _queue(queue, counts, is_paused=name in queues.paused_of([name]))
    return {**told, "counts_up_to": MANY, "configuration": {"backpressure": pressure, "delivery": queue.delivery}}


def _live() -> QuerySet[PullWorker]:
    return PullWorker.objects.using(conf().database).filter(seen_at__gt=sql.now() - _SILENT)


def _find(worker_id: str) -> PullWorker:
    found = PullWorker.objects.using(conf().database).filter(id=fetch.number(worker_id)).first()
    if found is None:
        raise missing("worker", worker_id)
    return found


def _workers(found: Sequence[PullWorker]) -> list[dict[str, Any]]:
    held = Slot.objects.using(conf().database).filter(
        pulled_until__isnull=False, worker_id__in=[row.id for row in found]
    )
    jobs = dict(held.values_list("worker_id").annotate(calls=Count("call_id", distinct=True)))
    return [
        {
            "id": each.name,
            "state": each.state,
            "directive": each.directive,
            "queues": each.queues,
            "active_jobs": jobs.get(each.id, 0),
            "started_at": stamp(each.started_at),
            "last_heartbeat_at": stamp(each.seen_at),
        }
        for each in found
    ]
