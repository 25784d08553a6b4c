"""The plans of workflows: their parts, and which start next. No queries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.ojs.models import Part, Workflow

STEP: Final = "step"
GRAPH: Final = "graph"
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
    """Return the steps whose dependencies are completed; after a failure none, and the end when no step is open."""
    failed = [place for place, part in steps.items() if part.outcome not in ("open", "completed")]
    following = [] if failed else _ready(workflow, steps)
    if following or any(part.outcome == "open" for part in steps.values()):
        return following
    if failed:
        return End(state="failed", failed_part=failed[0])
    return End(state="completed") if len(steps) == len(workflow.plan) else []


def _ready(workflow: Workflow, steps: Mapping[int, Part]) -> list[NextPart]:
    completed = {workflow.plan[at]["id"]: part.result for at, part in steps.items() if part.outcome == "completed"}
    ready = []
    for place, plan in enumerate(workflow.plan):
        if place not in steps and all(name in completed for name in plan["depends_on"]):
            before = {name: completed[name] for name in plan["depends_on"]}
            ready.append(_step(workflow, place, job_of_step(plan), {**workflow.results, **before}))
    return ready


def _follow_group(workflow: Workflow, steps: Mapping[int, Part], called: Mapping[str, Part]) -> list[NextPart] | End:
    """Return what follows when all parts have ended: a group ends, a batch starts its callbacks, once."""
    has_failed = any(part.outcome != "completed" for part in steps.values())
    if workflow.kind == "group":
        return End(state="failed" if has_failed else "completed")
    wanted = ["on_complete", "on_failure" if has_failed else "on_success"]
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


def job_of_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a step of a graph."""
    return {name: value for name, value in step.items() if name not in _OF_THE_GRAPH}
