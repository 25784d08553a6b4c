"""Workflows: chains, groups and batches of jobs (ojs-workflows), each part an ordinary call.

A graph is a fourth kind: steps that wait for those that they name (ojs-http-binding, section 14).

`advance` looks at how the parts ended and does what follows. It may be called at any time, by anybody, as often as one
likes: it locks the workflow, and a part is started once. So what a process leaves behind that dies half way, the next
look does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.conf import conf
from dispatcher.models import CallQueue, Part, Workflow
from dispatcher.push import push
from dispatcher.states import TERMINAL, State
from dispatcher.web.ojs import envelope
from dispatcher.web.ojs.bodies import JobIn
from dispatcher.web.ojs.queues import known_queues

STEP: Final = "step"
GRAPH: Final = "graph"
_OF_THE_GRAPH: Final = ("id", "depends_on")
"""What a step of a graph says besides its job."""
_ENDED: Final = ("completed", "failed", "cancelled")
_OUTCOMES: Final = {State.COMPLETED: "completed", State.CANCELLED: "cancelled", State.DISCARDED: "failed"}
_MOST: Final = 100
_ADVANCE: Final = "dispatcher.advance"
_EVERY_S: Final = 1


def start(
    plan: Mapping[str, Any], *, parent: Workflow | None = None, results: Mapping[str, Any] | None = None
) -> Workflow:
    """Make a workflow of a checked plan, and start the first of its parts, or all of them."""
    kind = plan["type"]
    with transaction.atomic(using=conf().database):
        made = Workflow.objects.using(conf().database).create(
            name=plan.get("name") or "",
            kind=kind,
            plan=plan["jobs"] if kind in ("group", "batch") else plan["steps"],
            callbacks=plan.get("callbacks") or {},
            results=dict(results or {}),
            parent=parent,
        )
        if kind == "chain":
            _start_part(made, STEP, 0, made.plan[0], made.results)
        elif kind == GRAPH:
            _advance_graph(made, {})
        else:
            for place, each in enumerate(made.plan):
                _start_part(made, STEP, place, each, made.results)
    made.refresh_from_db()
    return made


def advance(number: UUID) -> None:
    """Do what follows from how the parts of a workflow ended."""
    workflows = Workflow.objects.using(conf().database)
    with transaction.atomic(using=conf().database):
        workflow = workflows.select_for_update().filter(id=number, state="running").first()
        if workflow is None:
            return
        _see(workflow)
        steps = {part.place: part for part in workflow.parts.filter(role=STEP)}
        if workflow.kind == "chain":
            _advance_chain(workflow, steps)
        elif workflow.kind == GRAPH:
            _advance_graph(workflow, steps)
        elif len(steps) == len(workflow.plan) and all(part.outcome != "open" for part in steps.values()):
            _advance_group(workflow, steps)
        parent = workflow.parent_id if workflow.state in _ENDED else None
    if parent is not None:
        advance(parent)


def advance_all() -> int:
    """Look at the workflows that run; return how many there were. The latest begun are looked at last."""
    running = Workflow.objects.using(conf().database).filter(state="running", children__state="running").distinct()
    inner = Workflow.objects.using(conf().database).filter(state="running").exclude(id__in=running.values("id"))
    numbers = list(inner.order_by("id").values_list("id", flat=True))
    for number in numbers:
        advance(number)
    return len(numbers)


def cancel(workflow: Workflow) -> tuple[int, int]:
    """End a workflow: what waits is cancelled, what runs may finish; return how many were, and had ended before."""
    database = conf().database
    with transaction.atomic(using=database):
        locked = Workflow.objects.using(database).select_for_update().get(id=workflow.id)
        _see(locked)
        parts = list(locked.parts.all())
        calls = [part.call for part in parts if part.call is not None and part.outcome == "open"]
        done = sum(part.outcome == "completed" for part in parts)
        _end(locked, "cancelled")
    cancelled = len(engine.cancel(calls))
    for child in Workflow.objects.using(database).filter(parent=workflow, state="running"):
        more, ended = cancel(child)
        cancelled, done = cancelled + more, done + ended
    return cancelled, done


def schedule() -> None:
    """Have beat look at the workflows every second, if it does not yet."""
    from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: PLC0415 -- optional app

    every = {"every": _EVERY_S, "period": IntervalSchedule.SECONDS}
    schedules = IntervalSchedule.objects.using(conf().database)
    interval = schedules.filter(**every).first() or schedules.create(**every)
    entries = PeriodicTask.objects.using(conf().database)
    defaults = {"task": _ADVANCE, "interval": interval, "queue": conf().dispenser_queue}
    entries.get_or_create(name=_ADVANCE, defaults=defaults)


def of_call(call: CallQueue) -> UUID | None:
    """Return the workflow that a call is a part of."""
    belongs = (call.envelope or {}).get("workflow")
    return UUID(belongs["id"]) if belongs else None


def jobs_of(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the jobs of a plan, and of the workflows in it."""
    for part in [*plan.get("steps", ()), *plan.get("jobs", ()), *(plan.get("callbacks") or {}).values()]:
        if plan["type"] == GRAPH:
            yield job_of_step(part)
        elif is_workflow(part):
            yield from jobs_of(part)
        else:
            yield part


def is_workflow(part: Mapping[str, Any]) -> bool:
    """Return whether a part is a workflow again, and no job."""
    return part.get("type") in ("chain", "group", "batch") and ("steps" in part or "jobs" in part)


def _advance_chain(workflow: Workflow, steps: Mapping[int, Part]) -> None:
    results = dict(workflow.results)
    for place, plan in enumerate(workflow.plan):
        part = steps.get(place)
        if part is None:
            _start_part(workflow, STEP, place, plan, results)
            return
        if part.outcome == "open":
            return
        if part.outcome != "completed":
            workflow.failed_part = place
            _end(workflow, "failed")
            return
        results[str(place)] = part.result
    _end(workflow, "completed")


def _advance_graph(workflow: Workflow, steps: Mapping[int, Part]) -> None:
    """Start the steps whose own are all completed; after a failure none, and the end comes with what still runs."""
    outcomes = {plan["id"]: steps[place].outcome for place, plan in enumerate(workflow.plan) if place in steps}
    failed = [place for place, part in steps.items() if part.outcome not in ("open", "completed")]
    if failed:
        if "open" not in outcomes.values():
            workflow.failed_part = failed[0]
            _end(workflow, "failed")
        return
    for place, plan in enumerate(workflow.plan):
        if place not in steps and all(outcomes.get(name) == "completed" for name in plan["depends_on"]):
            results = {workflow.plan[at]["id"]: part.result for at, part in steps.items()}
            before = {name: results[name] for name in plan["depends_on"]}
            _start_part(workflow, STEP, place, job_of_step(plan), {**workflow.results, **before})
    if len(outcomes) == len(workflow.plan) and set(outcomes.values()) == {"completed"}:
        _end(workflow, "completed")


def job_of_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a step of a graph."""
    return {name: value for name, value in step.items() if name not in _OF_THE_GRAPH}


def _advance_group(workflow: Workflow, steps: Mapping[int, Part]) -> None:
    """Do what follows when all parts have ended: a group ends, a batch calls back, once."""
    has_failed = any(part.outcome != "completed" for part in steps.values())
    if workflow.kind == "group":
        _end(workflow, "failed" if has_failed else "completed")
        return
    wanted = ["on_complete", "on_failure" if has_failed else "on_success"]
    calling = {role: workflow.callbacks[role] for role in wanted if role in workflow.callbacks}
    called = {part.role: part for part in workflow.parts.exclude(role=STEP)}
    results = {str(place): part.result for place, part in steps.items()}
    for role, plan in calling.items():
        if role not in called:
            _start_part(workflow, role, 0, plan, results)
    if set(called) == set(calling) and all(part.outcome != "open" for part in called.values()):
        _end(workflow, "completed" if all(part.outcome == "completed" for part in called.values()) else "failed")


def _see(workflow: Workflow) -> None:
    """Note how the parts ended that were open until now."""
    parts = list(workflow.parts.filter(outcome="open").select_related("child"))
    calls = CallQueue.objects.using(conf().database).in_bulk([part.call for part in parts if part.call is not None])
    for part in parts:
        if part.child is not None:
            part.outcome = part.child.state if part.child.state in _ENDED else "open"
            part.result = results_of(part.child) if part.outcome == "completed" else None
        elif (call := calls.get(part.call)) is not None and call.state in TERMINAL:
            part.outcome, part.result = _OUTCOMES[State(call.state)], call.result
        if part.outcome != "open":
            part.save(update_fields=["outcome", "result"])


def results_of(workflow: Workflow) -> dict[str, Any]:
    """Return the results of a workflow's parts, by their places."""
    return {str(part.place): part.result for part in workflow.parts.filter(role=STEP).order_by("place")}


def _start_part(workflow: Workflow, role: str, place: int, plan: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    part = Part(workflow=workflow, role=role, place=place)
    if is_workflow(plan):
        part.child = start(plan, parent=workflow, results=results)
    else:
        wanted = envelope.read(JobIn.model_validate(plan))
        known_queues([wanted.queue])
        belongs = {"workflow": {"id": str(workflow.id), "results": dict(results)}}
        more = replace(wanted.call.more, envelope={**(wanted.call.more.envelope or {}), **belongs})
        (pushed,) = push([replace(wanted, call=replace(wanted.call, more=more))])
        part.call = pushed.call.id
    part.save(using=conf().database)


def _end(workflow: Workflow, state: str) -> None:
    workflow.state, workflow.ended_at = state, timezone.now()
    workflow.save(update_fields=["state", "ended_at", "failed_part"])


def parts_of(workflow: Workflow) -> Sequence[Part]:
    """Return the parts of a workflow that were started, in their order."""
    return list(workflow.parts.select_related("child").order_by("id"))
