"""Endpoints for administrators (ojs-admin-api, ojs-backpressure, ojs-fair-scheduling)."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from django.db.models import Count, Q
from django.http import HttpRequest
from ninja import Query

from dispatcher import api, engine, sql, validate
from dispatcher.engine import dispenser
from dispatcher.lanes import mixture
from dispatcher.models import CallQueue, Queue, Slot, Worker
from dispatcher.ojs import job_query, pull_workers
from dispatcher.ojs.admin_requests import BulkIn, BulkRequest, PurgeIn, QueueConfigIn
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.enqueue import create_queues, ojs_state, queue_name
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.job import write_job
from dispatcher.ojs.job_query import MAX_MOVED, JobsIn
from dispatcher.ojs.models import PullWorker
from dispatcher.ojs.pagination import ROW_LIMIT, PageIn, paginate
from dispatcher.ojs.responses import Answer, ItemsReply, Routes, replies
from dispatcher.ojs.views import queues
from dispatcher.ojs.views.jobs import find
from dispatcher.ojs.wire import conflict, invalid, missing, parse_time, the_one, without_nulls
from dispatcher.states import IN_FLIGHT, TERMINAL, Delivery, OnFull, State

router = Routes(tags=["admin"])

_SILENT = timedelta(seconds=30)
"""A worker without a heartbeat for this long is stale (ojs-worker-protocol)."""
_BATCH = 50
_BUDGET_S = 0.1
"""How long one request changes jobs; the client continues in further requests."""
_NOT_STARTED: Final = [state for state in State if state not in (State.ACTIVE, *TERMINAL)]
_MOVABLE: Final = {"retry": TERMINAL, "cancel": _NOT_STARTED, "delete": TERMINAL}
"""The actions on many jobs, and the states that allow them."""


@router.get("/admin/stats", auth=READ)
def stats(request: HttpRequest) -> Answer:
    """Count queues, workers and jobs; counts end at `counts_up_to`."""
    with sql.own_transaction(in_order=True):
        jobs = {state.value: job_query.count(state) for state in State if state is not State.DISPATCHED}
        ended = [job_query.count_last_minute(state) for state in (State.COMPLETED, State.DISCARDED)]
    celery = Worker.objects.filter(serves_until__gt=sql.now())
    pulling = PullWorker.objects.filter(seen_at__gt=sql.now() - _SILENT)
    return {
        "queues": Queue.objects.all()[:ROW_LIMIT].count(),
        "workers": pulling[:ROW_LIMIT].count() + celery[:ROW_LIMIT].count(),
        "jobs": jobs,
        "throughput": dict(zip(("processed_per_minute", "failed_per_minute"), ended, strict=True)),
        "counts_up_to": ROW_LIMIT,
    }


@router.get("/admin/queues", response=replies(ItemsReply), auth=READ)
def list_queues(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the queues, with the number of jobs in each state."""
    found = paginate(page, Queue.objects.all(), order=["name"], default=20)
    names = [queue.name for queue in found.rows]
    states, counts = queues.queue_states(names), queues.count_calls(names)
    items = [_queue(queue, counts[queue.name], states[queue.name]) for queue in found.rows]
    return {"items": items, "counts_up_to": queues.LIST_COUNT_LIMIT, "pagination": found.pagination}


@router.get("/admin/queues/{name}", auth=READ)
def get_queue(request: HttpRequest, name: str) -> Answer:
    """Show the statistics and the configuration of a queue."""
    queue = the_one(Queue.objects.filter(name=name), "queue", name)
    body = _queue(queue, queues.count_calls([name], most=ROW_LIMIT)[name], queues.queue_states([name])[name])
    pressure = {"max_depth": queue.max_depth or 0, "strategy": queue.on_full, "warning_threshold": queue.warn_at}
    settings = {"backpressure": pressure, "delivery": queue.delivery, "weight": queue.weight}
    return {**body, "counts_up_to": ROW_LIMIT, "configuration": settings}


@router.put("/admin/queues/{name}/config", auth=ADMIN)
def configure(request: HttpRequest, name: str, wanted: QueueConfigIn) -> Answer:
    """Set the bound and the limits of a queue, and who serves it; all of them, or none."""
    limits = _limits(wanted)
    with sql.patient(f"the queue {name!r}"):
        create_queues([queue_name(name)])
        _set_up(Queue.objects.select_for_update(no_key=True).get(name=name), wanted)
        if limits:
            queues.store_limits(name, limits, by=access_of(request).actor())
    engine.dispense_briefly(queues={name}.intersection(dispenser.ready_queues()))
    return get_queue(request, name)


@router.delete("/admin/queues/{name}/jobs", auth=ADMIN)
def purge(request: HttpRequest, name: str, wanted: PurgeIn) -> Answer:
    """Cancel the waiting jobs of a queue and delete its ended ones, by `states`, for up to 0.1 s.

    With `older_than` only jobs that ended before are deleted. `has_more`: repeat the request.
    """
    _confirm(wanted)
    before = parse_time("older_than", wanted.older_than)
    ended = job_query.find_in_queue(name, [state for state in wanted.states if state in TERMINAL], before)
    states = [] if before else sorted({*map(str, _NOT_STARTED)}.intersection(wanted.states))
    waiting = job_query.find_in_queue(name, states)
    until = monotonic() + _BUDGET_S
    tried, cancelled = _by_batches(waiting, api.cancel, until)
    tried_ended, deleted = _by_batches(ended, _delete, until)
    has_more = (tried, tried_ended) != (len(waiting), len(ended)) or MAX_MOVED in (tried, tried_ended)
    return {"purged_count": cancelled + deleted, "states": wanted.states, "has_more": has_more}


@router.get("/admin/jobs", response=replies(ItemsReply), auth=READ)
def jobs(request: HttpRequest, page: Query[PageIn], wanted: Query[JobsIn]) -> Answer:
    """List jobs, latest first: of a `queue`, in a `state`, of a `type` (or `prefix*`), `since` and `until`.

    Due jobs are ordered by queue and time, pending ones by queue. One page scans 10,000 jobs, so it may have fewer than
    `limit`. Continue while there is a `next_cursor`.
    """
    rows, order, among = job_query.list_jobs(wanted)
    found = job_query.page(page, rows, order=order, among=among, default=20)
    return {"items": [write_job(call) for call in found.rows], "pagination": found.pagination}


@router.post("/admin/jobs/bulk/{action}", auth=ADMIN)
def bulk(request: HttpRequest, action: str, wanted: BulkIn) -> Answer:
    """Retry, cancel or delete the selected jobs whose state allows it, oldest first, for up to 0.1 s.

    With `has_more`, repeat the request with its `next_cursor` as `cursor`.
    """
    _confirm(wanted)
    if action not in _MOVABLE:
        raise missing("action", action)
    if wanted.filter is None:
        raise invalid("filter", "is required; {} selects all jobs.")
    movable = job_query.filter_jobs(given_fields(wanted.filter)).filter(state__in=_MOVABLE[action])
    matched, next_cursor = job_query.find_oldest(movable, wanted.cursor)
    move = {"retry": api.retry, "cancel": api.cancel, "delete": _delete}[action]
    tried, done = _by_batches(matched, move, monotonic() + _BUDGET_S)
    if tried < len(matched):
        next_cursor = job_query.cursor_after(matched[tried - 1])
    body = {"action": action, "matched": tried, "succeeded": done, "failed": tried - done, "errors": []}
    more = {"has_more": next_cursor is not None, "next_cursor": next_cursor}
    return without_nulls({**body, **more})


@router.post("/admin/jobs/{job_id}/retry", auth=ADMIN)
def retry(request: HttpRequest, job_id: str) -> Answer:
    """Make an ended job wait again, from attempt 0."""
    call = find(job_id)
    if not api.retry([call.id]):
        message = f"Only ended jobs can be retried; this one is {ojs_state(call.state)}."
        raise conflict(message, job_id=job_id, current_state=ojs_state(call.state))
    return write_job(find(job_id))


@router.get("/admin/workers", response=replies(ItemsReply), auth=READ)
def workers(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the workers that fetch over HTTP."""
    found = paginate(page, PullWorker.objects.all(), order=["name"], default=20)
    is_live, is_running = Q(seen_at__gt=sql.now() - _SILENT), Q(directive="running")
    # Of the workers seen last, if there are more.
    latest = PullWorker.objects.order_by("-seen_at")[:ROW_LIMIT]
    summary = latest.aggregate(
        total=Count("id"),
        running=Count("id", filter=is_live & is_running),
        quiet=Count("id", filter=is_live & ~is_running),
        stale=Count("id", filter=~is_live),
    )
    return {"items": _workers(found.rows), "summary": summary, "pagination": found.pagination}


@router.get("/admin/workers/{worker_id}", auth=READ)
def worker(request: HttpRequest, worker_id: str) -> Answer:
    """Show a worker and the jobs that it holds."""
    held = Slot.objects.filter(worker_id=pull_workers.worker_id(worker_id), pulled_until__isnull=False)
    calls = [str(call) for call in sorted(set(held.values_list("call_id", flat=True)))]
    return {**_workers([pull_workers.find(worker_id)])[0], "jobs": calls}


@router.post("/admin/workers/{worker_id}/{directive}", auth=ADMIN)
def direct(request: HttpRequest, worker_id: str, directive: str) -> Answer:
    """Answer the worker's heartbeats with this directive: `running`, `quiet` or `terminate`."""
    if directive not in ("running", "quiet", "terminate"):
        raise missing("directive", directive)
    if not pull_workers.set_directive(worker_id, directive):
        raise missing("worker", worker_id)
    return _workers([pull_workers.find(worker_id)])[0]


def _set_up(queue: Queue, wanted: QueueConfigIn) -> None:
    if (pressure := wanted.backpressure) is not None:
        queue.max_depth = pressure.max_depth or None
        queue.on_full = OnFull(pressure.strategy or OnFull.REJECT)
        queue.warn_at = queue.warn_at if pressure.warning_threshold is None else pressure.warning_threshold
    if wanted.delivery is not None and wanted.delivery != queue.delivery:
        if CallQueue.objects.filter(queue=queue.name, state__in=IN_FLIGHT).exists():
            message = "Workers hold jobs of this queue; wait until they have ended."
            raise conflict(message, queue=queue.name)
        if wanted.delivery == Delivery.BROKER.value:
            mixture.check_delivery(queue.name)
        queue.delivery = wanted.delivery
    if wanted.weight is not None:
        queue.weight = wanted.weight
    validate.queue_weight(queue.weight, queue.delivery)
    queue.is_undecided &= wanted.delivery is None
    queue.save()


def _confirm(confirmed: BulkRequest) -> None:
    if confirmed.confirm is not True:
        raise invalid("confirm", "must be true: this request changes many jobs.")


def _by_batches(calls: Sequence[UUID], move: Callable[[list[UUID]], Sized], until: float) -> tuple[int, int]:
    """Change calls until a time, each batch in its own transaction; return how many were tried and changed."""
    tried = moved = 0
    while tried < len(calls) and (tried == 0 or monotonic() < until):
        batch = [*calls[tried : tried + _BATCH]]
        moved += len(move(batch))
        tried += len(batch)
    return tried, moved


def _delete(calls: Sequence[UUID]) -> range:
    """Delete those of these calls that have ended; a call that was retried meanwhile stays."""
    ended = CallQueue.objects.filter(id__in=calls, state__in=TERMINAL)
    return range(ended.delete()[0])


def _limits(wanted: QueueConfigIn) -> Answer:
    """Return the limits of a configuration, None for those to remove. Raises Problem."""
    given = {} if wanted.concurrency is None else {"concurrency": wanted.concurrency}
    if wanted.rate_limit is None:
        return given
    named = wanted.rate_limit.named()
    if not named:
        raise invalid("rate_limit", "name limit and period, or one of concurrency, rate and throttle.")
    if given.keys() & named.keys():
        raise invalid("rate_limit.concurrency", "is given beside rate_limit, too; give it once.")
    return given | named


def _queue(queue: Queue, numbers: queues.Counts, state: str) -> Answer:
    counts = asdict(numbers)
    named = ("available", "active", "scheduled", "retryable", "completed", "discarded", "cancelled")
    throughput = {
        "processed_per_minute": numbers.completed_last_minute,
        "failed_per_minute": numbers.failed_last_minute,
    }
    shown = {"counts": {name: counts[name] for name in named}, "throughput": throughput}
    return {**queues.render_queue(queue), "state": state, "paused": state == "paused", **shown}


def _workers(found: Sequence[PullWorker]) -> list[Answer]:
    held = Slot.objects.filter(pulled_until__isnull=False, worker_id__in=[row.id for row in found])
    jobs = dict(held.values_list("worker_id").annotate(calls=Count("call_id", distinct=True)))
    return [
        {
            "id": each.name,
            "state": each.state,
            "directive": each.directive,
            "queues": each.queues,
            "active_jobs": jobs.get(each.id, 0),
            "started_at": each.started_at,
            "last_heartbeat_at": each.seen_at,
        }
        for each in found
    ]
