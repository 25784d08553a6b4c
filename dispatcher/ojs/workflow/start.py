"""Start parts of workflows: all parts that start together are written together."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dispatcher import sql
from dispatcher.models import CallQueue
from dispatcher.ojs.enqueue import EnqueueRequest, enqueue
from dispatcher.ojs.job import read_job
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.options import options_of
from dispatcher.ojs.requests import JobIn
from dispatcher.ojs.workflow.plan import End, NextPart, is_workflow, next_parts, parts_field


def start_parts(following: Iterable[NextPart]) -> None:
    """Start parts of workflows, and the first parts of those that are workflows. Raises the errors of sending.

    All are written together: a plan of hundreds of workflows costs little more than its jobs.
    """
    laid = list(_lay_out(following))
    Workflow.objects.bulk_create(part.child for _, part in laid if part.child is not None)
    jobs = [(part, enqueue_request(each)) for each, part in laid if part.child is None]
    kept = []
    for run in _runs(jobs):
        for (part, _), result in zip(run, enqueue([job for _, job in run]), strict=True):
            part.call = result.call.id
            kept += [] if result.is_new else [part]
    _read_ends(kept)
    Part.objects.bulk_create(part for _, part in laid)


def _read_ends(kept: Collection[Part]) -> None:
    """Set when the calls of parts ended that were sent before: locked, so that each later end marks its part."""
    if kept:
        calls = CallQueue.objects.filter(id__in=[part.call for part in kept]).order_by("id")
        ends = dict(calls.select_for_update(no_key=True).values_list("id", "finished_at"))
        for part in kept:
            part.ended_at = ends[part.call] if part.call in ends else sql.now()


def _lay_out(following: Iterable[NextPart]) -> Iterator[tuple[NextPart, Part]]:
    """Return the parts to start, each before the parts within it; none is written yet."""
    for each in following:
        part = Part(workflow=each.workflow, role=each.role, place=each.place)
        if is_workflow(each.plan):
            part.child = draft(each.plan, parent=each.workflow, results=each.results)
        yield each, part
        inner = [] if part.child is None else next_parts(part.child, {})
        if not isinstance(inner, End):
            yield from _lay_out(inner)


def draft(plan: Mapping[str, Any], *, parent: Workflow | None = None, results: Mapping[str, Any]) -> Workflow:
    """Return an unsaved workflow of a validated plan."""
    return Workflow(
        name=plan.get("name") or "",
        kind=plan["type"],
        plan=plan[parts_field(plan)],
        callbacks=plan.get("callbacks") or {},
        results=dict(results),
        parent=parent,
    )


def _runs(jobs: Iterable[tuple[Part, EnqueueRequest]]) -> Iterator[list[tuple[Part, EnqueueRequest]]]:
    """Split jobs into runs that can be sent together: the second job with a unique key starts a new run."""
    run: list[tuple[Part, EnqueueRequest]] = []
    keys: set[str] = set()
    for part, job in jobs:
        key = job.unique.key if job.unique else None
        if key in keys:
            yield run
            run, keys = [], set()
        run.append((part, job))
        keys |= {key} if key else set()
    if run:
        yield run


def enqueue_request(each: NextPart) -> EnqueueRequest:
    """Return the request that sends the job of a part. Raises Problem or ValidationError."""
    job = read_job(JobIn.model_validate(each.plan))
    belongs = {"workflow": {"id": str(each.workflow.id), "results": dict(each.results)}}
    given = options_of(job.call)
    options = replace(given, envelope={**(given.envelope or {}), **belongs}, sender=f"workflow:{each.workflow.id}")
    return replace(job, call=replace(job.call, extras=options))
