"""Workflows: chains, groups and batches of jobs (ojs-workflows), each part an ordinary call.

A graph is a fourth kind: steps that wait for those that they name (ojs-http-binding, section 14).

`advance` looks at how the parts ended and does what follows. It may be called at any time, by anybody, as often as one
likes: it locks the workflow, and a part is started once. So what a process leaves behind that dies half way, the next
look does. A part that can't be sent has failed, and says why; where its queue is full, the next look sends it.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from django.db import connections, transaction
from django.db.models.functions import Now
from django.utils import timezone
from pydantic import ValidationError

from dispatcher import engine
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid, DuplicateCall, PolicyInvalid, QueueFull
from dispatcher.models import CallQueue, Part, Workflow
from dispatcher.push import push
from dispatcher.states import TERMINAL, State
from dispatcher.web.ojs import envelope
from dispatcher.web.ojs.bodies import JobIn
from dispatcher.web.ojs.queues import known_queues
from dispatcher.web.ojs.wire import Problem

logger = logging.getLogger(__name__)

STEP: Final = "step"
GRAPH: Final = "graph"
_OF_THE_GRAPH: Final = ("id", "depends_on")
"""What a step of a graph says besides its job."""
_ENDED: Final = ("completed", "failed", "cancelled")
_OUTCOMES: Final = {State.COMPLETED: "completed", State.CANCELLED: "cancelled", State.DISCARDED: "failed"}
_NOT_SENT: Final = (CallInvalid, PolicyInvalid, DuplicateCall, Problem, ValidationError)
"""What is the matter with a part itself, so that no later look could send it."""
_ADVANCE: Final = "dispatcher.advance"
_EVERY_S: Final = 1


def start(
    plan: Mapping[str, Any], *, parent: Workflow | None = None, results: Mapping[str, Any] | None = None
) -> Workflow:
    """Make a workflow of a checked plan, and start the first of its parts, or all of them.

    Raises what sending them raises; then there is no workflow.
    """
    kind = plan["type"]
    with transaction.atomic(using=conf().database):
        made = Workflow.objects.using(conf().database).create(
            name=plan.get("name") or "",
            kind=kind,
            plan=plan[parts_field(plan)],
            callbacks=plan.get("callbacks") or {},
            results=dict(results or {}),
            parent=parent,
        )
        for place, each in enumerate(made.plan):
            if kind == GRAPH and not each["depends_on"]:
                _start_part(made, STEP, place, job_of_step(each), made.results)
            elif kind != GRAPH and (kind != "chain" or place == 0):
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


def look(number: UUID) -> None:
    """Advance a workflow; what stands in its way goes to the log, and stops no other."""
    try:
        advance(number)
    except Exception:
        if not connections[conf().database].is_usable():
            raise
        logger.exception("workflow %s can't go on", number)


def advance_all() -> int:
    """Look at the workflows that run; return how many there were. The latest begun are looked at last."""
    running = Workflow.objects.using(conf().database).filter(state="running", children__state="running").distinct()
    inner = Workflow.objects.using(conf().database).filter(state="running").exclude(id__in=running.values("id"))
    numbers = list(inner.order_by("id").values_list("id", flat=True))
    for number in numbers:
        look(number)
    return len(numbers)


def cancel(workflow: Workflow) -> tuple[int, int] | None:
    """End a workflow: what waits is cancelled, what runs may finish.

    Return how many were cancelled, and how many had been completed before; None if the workflow does not run any more.
    """
    database = conf().database
    with transaction.atomic(using=database):
        locked = Workflow.objects.using(database).select_for_update().filter(id=workflow.id, state="running").first()
        if locked is None:
            return None
        _see(locked)
        parts = list(locked.parts.all())
        calls = [part.call for part in parts if part.call is not None and part.outcome == "open"]
        done = sum(part.outcome == "completed" for part in parts)
        _end(locked, "cancelled")
    cancelled = len(engine.cancel(calls))
    for child in Workflow.objects.using(database).filter(parent=workflow, state="running"):
        if (inside := cancel(child)) is not None:
            cancelled, done = cancelled + inside[0], done + inside[1]
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


def parts_in(plan: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, Any]]:
    """Return the parts of a plan, jobs or workflows, each after its path."""
    field = parts_field(plan)
    yield from ((f"{path}.{field}[{place}]", part) for place, part in enumerate(plan[field]))
    yield from ((f"{path}.callbacks.{role}", part) for role, part in (plan.get("callbacks") or {}).items())


def parts_field(plan: Mapping[str, Any]) -> str:
    """Return where a plan has its parts."""
    return "jobs" if plan["type"] in ("group", "batch") else "steps"


def jobs_of(plan: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the jobs of a plan, and of the workflows in it, each after its path."""
    for where, part in parts_in(plan, path):
        if plan["type"] == GRAPH:
            yield where, job_of_step(part)
        elif is_workflow(part):
            yield from jobs_of(part, where)
        else:
            yield where, part


def is_workflow(part: Mapping[str, Any]) -> bool:
    """Return whether a part is a workflow again, and no job."""
    return part.get("type") in ("chain", "group", "batch") and ("steps" in part or "jobs" in part)


def _advance_chain(workflow: Workflow, steps: Mapping[int, Part]) -> None:
    results = dict(workflow.results)
    for place, plan in enumerate(workflow.plan):
        part = steps.get(place) or _follow(workflow, STEP, place, plan, results)
        if part is None or part.outcome == "open":
            return
        if part.outcome != "completed":
            workflow.failed_part = place
            _end(workflow, "failed")
            return
        results[str(place)] = part.result
    _end(workflow, "completed")


def _advance_graph(workflow: Workflow, steps: Mapping[int, Part]) -> None:
    """Start the steps whose own are all completed; after a failure none, and the end comes with what still runs."""
    started = dict(steps)
    completed = {workflow.plan[at]["id"]: part.result for at, part in steps.items() if part.outcome == "completed"}
    for place, plan in enumerate(workflow.plan):
        if any(part.outcome not in ("open", "completed") for part in started.values()):
            break
        if place not in started and all(name in completed for name in plan["depends_on"]):
            before = {name: completed[name] for name in plan["depends_on"]}
            part = _follow(workflow, STEP, place, job_of_step(plan), {**workflow.results, **before})
            started |= {} if part is None else {place: part}
    outcomes = {part.outcome for part in started.values()}
    if "open" in outcomes:
        return
    if failed := [place for place, part in started.items() if part.outcome != "completed"]:
        workflow.failed_part = failed[0]
        _end(workflow, "failed")
    elif len(started) == len(workflow.plan):
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
        if role not in called and (part := _follow(workflow, role, 0, plan, results)) is not None:
            called[role] = part
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
        elif (call := calls.get(part.call)) is None:
            part.outcome, part.error = "failed", _error("not_found", "Its job was deleted before it was seen to end.")
        elif call.state in TERMINAL:
            part.outcome, part.result = _OUTCOMES[State(call.state)], call.result
        if part.outcome != "open":
            part.save(update_fields=["outcome", "result", "error"])


def results_of(workflow: Workflow) -> dict[str, Any]:
    """Return the results of a workflow's parts, by their places."""
    return {str(part.place): part.result for part in workflow.parts.filter(role=STEP).order_by("place")}


def _follow(
    workflow: Workflow, role: str, place: int, plan: Mapping[str, Any], results: Mapping[str, Any]
) -> Part | None:
    """Start a part of a workflow that runs; one that can't be sent has failed. None: its queue is full."""
    try:
        with transaction.atomic(using=conf().database):
            return _start_part(workflow, role, place, plan, results)
    except QueueFull:
        return None
    except _NOT_SENT as refused:
        part = Part(workflow=workflow, role=role, place=place, outcome="failed", error=_refusal(refused))
        part.save(using=conf().database)
        return part


def _refusal(refused: Exception) -> dict[str, Any]:
    """Return why a part could not be sent, as the answer to a push of it would say."""
    if isinstance(refused, Problem):
        return _error(refused.code, refused.message)
    return _error("duplicate" if isinstance(refused, DuplicateCall) else "invalid_request", str(refused))


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": code, "code": code, "message": message, "occurred_at": timezone.now().isoformat()}


def _start_part(workflow: Workflow, role: str, place: int, plan: Mapping[str, Any], results: Mapping[str, Any]) -> Part:
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
    return part


def _end(workflow: Workflow, state: str) -> None:
    workflow.state, workflow.ended_at = state, Now()
    workflow.save(update_fields=["state", "ended_at", "failed_part"])


def parts_of(workflow: Workflow) -> Sequence[Part]:
    """Return the parts of a workflow that were started, in their order."""
    return list(workflow.parts.select_related("child").order_by("id"))
