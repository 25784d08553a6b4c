"""The start of parts of workflows: whatever a look starts, in any number of workflows, is written together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dispatcher.conf import conf
from dispatcher.models import CallQueue, Part, Workflow
from dispatcher.ojs.enqueue import Wanted, push
from dispatcher.ojs.job import read_job
from dispatcher.ojs.queues import known_queues
from dispatcher.ojs.requests import JobIn
from dispatcher.ojs.workflow.plan import End, Next, follow, is_workflow, parts_field


def start_parts(following: Iterable[Next]) -> None:
    """Start parts of workflows, and the first ones of those that are workflows again. Raises what sending raises.

    All is written together: a plan of hundreds of workflows costs little more than its jobs.
    """
    laid = list(_lay_out(following))
    Workflow.objects.using(conf().database).bulk_create(part.child for _, part in laid if part.child is not None)
    jobs = [(part, wanted(each)) for each, part in laid if part.child is None]
    known_queues({job.queue for _, job in jobs})
    for run in _runs(jobs):
        for (part, _), pushed in zip(run, push([job for _, job in run]), strict=True):
            part.call = pushed.call.id
    Part.objects.using(conf().database).bulk_create(part for _, part in laid)
    sent = [part.call for part, _ in jobs if part.call]
    CallQueue.objects.using(conf().database).filter(id__in=sent).update(is_awaited=True)


def _lay_out(following: Iterable[Next]) -> Iterator[tuple[Next, Part]]:
    """Return parts to start, each before what starts within it; nothing is written yet."""
    for each in following:
        part = Part(workflow=each.workflow, role=each.role, place=each.place)
        if is_workflow(each.plan):
            part.child = draft(each.plan, parent=each.workflow, results=each.results)
        yield each, part
        inner = [] if part.child is None else follow(part.child, {})
        if not isinstance(inner, End):
            yield from _lay_out(inner)


def draft(plan: Mapping[str, Any], *, parent: Workflow | None = None, results: Mapping[str, Any]) -> Workflow:
    """Return a workflow of a checked plan; it is not written yet."""
    return Workflow(
        name=plan.get("name") or "",
        kind=plan["type"],
        plan=plan[parts_field(plan)],
        callbacks=plan.get("callbacks") or {},
        results=dict(results),
        parent=parent,
    )


def _runs(jobs: Iterable[tuple[Part, Wanted]]) -> Iterator[list[tuple[Part, Wanted]]]:
    """Split jobs into runs that may be sent together: of two with the same unique key the second is resolved later."""
    run: list[tuple[Part, Wanted]] = []
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


def wanted(each: Next) -> Wanted:
    """Return the job of a part as it is sent. Raises Problem or ValidationError."""
    job = read_job(JobIn.model_validate(each.plan))
    belongs = {"workflow": {"id": str(each.workflow.id), "results": dict(each.results)}}
    envelope_of = {**(job.call.more.envelope or {}), **belongs}
    more = replace(job.call.more, envelope=envelope_of, sender=f"workflow:{each.workflow.id}")
    return replace(job, call=replace(job.call, more=more))
