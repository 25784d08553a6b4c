"""The plans of workflows: their parts, which of them start next, and how: those that start together, together."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dispatcher import sql
from dispatcher.models import CallQueue
from dispatcher.ojs.enqueue import EnqueueRequest, enqueue
from dispatcher.ojs.job import read_job
from dispatcher.ojs.jobs import options_of, with_options
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.requests import JobIn

STEP: Final = "step"
GRAPH: Final = "graph"
CALLBACKS: Final = ("on_complete", "on_success", "on_failure")
_OF_THE_GRAPH: Final = ("id", "depends_on")
"""The fields of a graph's step that are not fields of its job."""


@dataclass(frozen=True, kw_only=True)
class NextPart:
    """A part of a workflow to start now, with the results that it gets."""

    workflow: Workflow
    role: str
    place: int
    plan: Mapping[str, Any]
    results: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a workflow: its state, and the place of the part that failed it."""

    state: str
    failed_part: int | None = None


def next_parts(workflow: Workflow, parts: Mapping[tuple[str, int], Part]) -> list[NextPart] | End:
    """Return the parts to start now, or how the workflow ends; an empty list: it waits for its open parts.

    parts: those that have started, by role and place.
    """
    steps = {place: part for (role, place), part in parts.items() if role == STEP}
    if workflow.kind == "chain":
        return _follow_chain(workflow, steps)
    if workflow.kind == GRAPH:
        return _follow_graph(workflow, steps)
    missing = [place for place in range(len(workflow.plan)) if place not in steps]
    if missing:
        return [_step(workflow, place, workflow.plan[place], workflow.results) for place in missing]
    if any(part.outcome == "open" for part in parts.values()):
        return []
    return _follow_group(workflow, steps, {role: part for (role, _), part in parts.items() if role != STEP})


def _follow_chain(workflow: Workflow, steps: Mapping[int, Part]) -> list[NextPart] | End:
    results = dict(workflow.results)
    for place, plan in enumerate(workflow.plan):
        part = steps.get(place)
        if part is None:
            return [_step(workflow, place, plan, results)]
        if part.outcome == "open":
            return []
        if part.outcome != "completed":
            return End(state="failed", failed_part=place)
        results[str(place)] = part.result
    return End(state="completed")


def _follow_graph(workflow: Workflow, steps: Mapping[int, Part]) -> list[NextPart] | End:
    """Return the steps whose dependencies are completed; after a failure none. Then its callbacks, and then the end."""
    callbacks = {place: role for place, plan in enumerate(workflow.plan) if (role := callback_of(plan))}
    completed = {workflow.plan[at]["id"]: part.result for at, part in steps.items() if part.outcome == "completed"}
    failed = [place for place, part in steps.items() if part.outcome not in ("open", "completed")]
    is_open = any(part.outcome == "open" for part in steps.values())
    waiting = {*range(len(workflow.plan))} - steps.keys() - callbacks.keys()
    following = [at for at in sorted(waiting) if not failed and completed.keys() >= {*workflow.plan[at]["depends_on"]}]
    if not following and not is_open:
        called = _called_after(has_failed=any(place not in callbacks for place in failed))
        following = [place for place, role in callbacks.items() if role in called and place not in steps]
    if not following and not is_open:
        return End(state="failed", failed_part=failed[0]) if failed else End(state="completed")
    return [_step_of_graph(workflow, place, completed) for place in following]


def _step_of_graph(workflow: Workflow, place: int, completed: Mapping[str, Any]) -> NextPart:
    plan = workflow.plan[place]
    before = {name: completed[name] for name in plan["depends_on"] if name in completed}
    return _step(workflow, place, job_of_step(plan), {**workflow.results, **before})


def _called_after(*, has_failed: bool) -> tuple[str, ...]:
    """Return the callbacks that start when all parts have ended."""
    return ("on_complete", "on_failure" if has_failed else "on_success")


def _follow_group(workflow: Workflow, steps: Mapping[int, Part], called: Mapping[str, Part]) -> list[NextPart] | End:
    """Return what follows when all parts have ended: a group ends, a batch starts its callbacks, once."""
    has_failed = any(part.outcome != "completed" for part in steps.values())
    if workflow.kind == "group":
        return End(state="failed" if has_failed else "completed")
    wanted = _called_after(has_failed=has_failed)
    calling = {role: workflow.callbacks[role] for role in wanted if role in workflow.callbacks}
    results = {str(place): part.result for place, part in steps.items()}
    if missing := [role for role in calling if role not in called]:
        return [
            NextPart(workflow=workflow, role=role, place=0, plan=calling[role], results=results) for role in missing
        ]
    return End(state="completed" if all(part.outcome == "completed" for part in called.values()) else "failed")


def _step(workflow: Workflow, place: int, plan: Mapping[str, Any], results: Mapping[str, Any]) -> NextPart:
    return NextPart(workflow=workflow, role=STEP, place=place, plan=plan, results=results)


def parts_in(plan: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, Any]]:
    """Return the parts of a plan, jobs or workflows, each after its path."""
    field = parts_field(plan)
    yield from ((f"{path}.{field}[{place}]", part) for place, part in enumerate(plan[field]))
    yield from ((f"{path}.callbacks.{role}", part) for role, part in (plan.get("callbacks") or {}).items())


def parts_field(plan: Mapping[str, Any]) -> str:
    """Return the name of the field with the parts of a plan."""
    return "jobs" if plan["type"] in ("group", "batch") else "steps"


def is_workflow(part: Mapping[str, Any]) -> bool:
    """Return whether a part is a workflow, not a job."""
    return part.get("type") in ("chain", "group", "batch") and ("steps" in part or "jobs" in part)


def callback_of(step: Mapping[str, Any]) -> Any:
    """Return which callback a step of a graph is, as the Python SDK writes the batches of the spec; None: none."""
    options = step.get("options")
    return options.get("callback_type") if isinstance(options, dict) else None


def job_of_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a step of a graph."""
    return {name: value for name, value in step.items() if name not in _OF_THE_GRAPH}


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
    envelope = {**(options_of(job.call).envelope or {}), **belongs}
    return replace(job, call=with_options(job.call, envelope=envelope, sender=f"workflow:{each.workflow.id}"))
