"""Workflows: create, show, cancel (ojs-workflows)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Status
from pydantic import BaseModel, ValidationError

from dispatcher.celery.schedule import ensure_periodic
from dispatcher.models import CallQueue
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.enqueue import ojs_state, validation_errors
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.job import json_size, read_job, write_error
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.permissions import require_send
from dispatcher.ojs.requests import JobIn, WorkflowIn
from dispatcher.ojs.responses import Answer, Routes, replies
from dispatcher.ojs.wire import ANSWER_BYTES, Problem, conflict, fitting, parse_id, the_one, without_nulls
from dispatcher.ojs.workflow.advance import ADVANCE, EVERY, cancel_workflow, parts_of, start_workflow, try_advance
from dispatcher.ojs.workflow.plan import (
    CALLBACKS,
    GRAPH,
    STEP,
    callback_of,
    is_workflow,
    job_of_step,
    parts_field,
    parts_in,
)
from dispatcher.states import State

router = Routes(tags=["workflows"])

_DEEPEST = 5
_MOST_JOBS = 1_000
_TOO_MANY = ("$", f"has more than {_MOST_JOBS} jobs.")
_FIELDS = ("steps", "jobs", "callbacks", "options")
_MORE = {"batch": ("callbacks",), GRAPH: ("options",)}
"""The fields of a kind in addition to its parts."""
_SHOWN = {"available": "pending", "scheduled": "pending", "retryable": "active", "discarded": "failed"}


@router.post("/workflows", response=replies(status=201))
def create(request: HttpRequest, response: HttpResponse, wanted: WorkflowIn) -> Status[Answer]:
    """Start a chain, a group or a batch, whose parts may be workflows; or a graph of dependent steps."""
    plan = given_fields(wanted)
    if wanted.type is None:
        plan = _graph(plan)
    jobs = dict(islice(_jobs(plan), _MOST_JOBS + 1))
    if len(jobs) > _MOST_JOBS:
        _refuse([_TOO_MANY])
    _refuse([fault for path, job in jobs.items() for fault in _faults_of_model(JobIn, job, path)])
    calls = {f"{path}.": read_job(JobIn.model_validate(job), f"{path}.") for path, job in jobs.items()}
    require_send(access_of(request), calls)
    wrong, faults = validation_errors([*calls.values()]), list[tuple[str, str]]()
    for path, fault in ((path, wrong[place]) for place, path in enumerate(calls) if place in wrong):
        field = fault.field if fault.field in ("args", "meta") else f"options.{fault.field}"
        faults.append((f"{path}{field}", str(fault).removeprefix(f"{fault.field}: ")))
    _refuse(faults)
    made = start_workflow(plan)
    ensure_periodic(ADVANCE, EVERY)
    response["Location"] = f"{request.path}/{made.id}"
    return Status(201, {"workflow": _render(made)})


@router.get("/workflows/{number}", auth=READ)
def show(request: HttpRequest, number: str) -> Answer:
    """Show the state of a workflow and its parts."""
    try_advance(_find(number).id)
    return {"workflow": _render(_find(number))}


@router.delete("/workflows/{number}", auth=ADMIN)
def cancel(request: HttpRequest, number: str) -> Answer:
    """Cancel a workflow; running jobs may finish."""
    ended = cancel_workflow(_find(number))
    found = _find(number)
    if ended is None:
        message = f"The workflow is {found.state}."
        raise conflict(message, workflow_id=number, current_state=found.state)
    return {"workflow": {**_render(found), "steps_cancelled": ended[0], "steps_already_completed": ended[1]}}


def _refuse(found: Sequence[tuple[str, str]]) -> None:
    """Raise Problem if a plan has errors."""
    if found:
        errors = [{"path": path, "message": message} for path, message in found[:20]]
        message = f"Workflow validation failed: {errors[0]['path']} {errors[0]['message']}"
        raise Problem(400, "invalid_workflow", message, details={"validation_errors": errors})


def _graph(plan: Mapping[str, Any]) -> Answer:
    """Return a plan of steps that depend on each other, each merged with the options that apply to all."""
    usual = plan.get("options") or {}
    steps = [{"depends_on": [], **step} for step in plan.get("steps") or []]
    for step in steps:
        own = step.get("options")
        step["options"] = {**usual, **own} if isinstance(own, dict) else (usual if own is None else own)
    return {**plan, "type": GRAPH, "steps": steps}


def _faults_of_graph(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    names = Counter(name for step in steps if isinstance(name := step.get("id"), str))
    is_sound = True
    for place, step in enumerate(steps):
        name, before, path = step.get("id"), step["depends_on"], f"$.steps[{place}]"
        if not isinstance(name, str) or not name or names[name] > 1:
            is_sound = False
            yield f"{path}.id", "must be a string that no other step has."
        if not isinstance(before, list) or not all(isinstance(each, str) and each in names for each in before):
            is_sound = False
            yield f"{path}.depends_on", "must be a list of the ids of other steps."
        if callback_of(step) not in (None, *CALLBACKS):
            yield f"{path}.options.callback_type", "must be on_complete, on_success or on_failure."
        if is_workflow(step):
            yield f"{path}.type", f"is a {step['type']}; a step that depends on others is a job."
    if is_sound:
        try:
            TopologicalSorter({step["id"]: step["depends_on"] for step in steps}).prepare()
        except CycleError as error:
            yield "$.steps", f"depend on each other in a cycle: {' -> '.join(error.args[1])}."


def _jobs(plan: Mapping[str, Any], path: str = "$", depth: int = 1) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the jobs of a plan and of the workflows in it, each after its path. Raises Problem for an invalid one.

    Each workflow is validated when it is reached, so the first jobs cost the same in a plan of any size.
    """
    if depth > _DEEPEST:
        _refuse([(path, f"is nested deeper than {_DEEPEST} levels.")])
    if depth > 1:
        _refuse(_faults_of_model(WorkflowIn, plan, path))
    _refuse([*_faults_of_shape(plan, path)])
    for where, part in parts_in(plan, path):
        if is_workflow(part):
            yield from _jobs(part, where, depth + 1)
        else:
            yield where, job_of_step(part) if plan["type"] == GRAPH else part


def _faults_of_shape(plan: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    kind, field = plan["type"], parts_field(plan)
    for name in _FIELDS:
        if plan.get(name) and name not in (field, *_MORE.get(kind, ())):
            yield f"{path}.{name}", f"is not a field of a {kind}, whose parts are its {field}; leave it out."
    if not plan.get(field):
        yield f"{path}.{field}", "must name at least one job."
    if kind == "batch" and not plan.get("callbacks"):
        yield f"{path}.callbacks", "must name on_complete, on_success or on_failure."
    if len(plan.get(field) or ()) > _MOST_JOBS:
        yield _TOO_MANY
    elif kind == GRAPH:
        yield from _faults_of_graph(plan[field])


def _faults_of_model(model: type[BaseModel], part: Mapping[str, Any], path: str) -> list[tuple[str, str]]:
    try:
        model.model_validate(part)
    except ValidationError as error:
        return [(".".join([path, *map(str, each["loc"])]), each["msg"]) for each in error.errors()]
    return []


def _find(number: str) -> Workflow:
    return the_one(Workflow.objects.filter(id=parse_id("workflow", number)), "workflow", number)


def _render(workflow: Workflow) -> Answer:
    parts = parts_of(workflow)
    rows = CallQueue.objects.only("state", "error", "started_at", "finished_at")
    calls = rows.in_bulk([part.call for part in parts if part.call is not None])
    errors = _errors(parts, calls)
    shown = {(part.role, part.place): _part(part, calls, errors) for part in parts}
    is_graph = workflow.kind == GRAPH
    open_state = "pending" if is_graph else "waiting"
    waiting = {"state": open_state if workflow.state == "running" else "cancelled", "job_id": None}
    steps = [
        {
            **({"id": plan["id"], "depends_on": plan["depends_on"]} if is_graph else {"index": place}),
            "type": plan.get("type"),
            **shown.get((STEP, place), waiting),
        }
        for place, plan in enumerate(workflow.plan)
    ]
    name = parts_field({"type": workflow.kind})
    states = [step["state"] for step in steps]
    times = {"created_at": workflow.created_at, "completed_at": workflow.ended_at}
    return without_nulls(
        {
            "id": str(workflow.id),
            "type": workflow.kind,
            "name": workflow.name or None,
            "state": workflow.state,
            name: steps,
            f"{name}_total": len(steps),
            f"{name}_completed": states.count("completed"),
            "callbacks": {role: body for (role, _), body in shown.items() if role != STEP} or None,
            "failed_step_index": workflow.failed_part,
            "failed_job_ids": [str(part.call) for part in parts if part.outcome == "failed" and part.call] or None,
            "errors": [*errors.values()] or None,
            "created_at": workflow.created_at,
            "cancelled_at": workflow.ended_at if workflow.state == "cancelled" else None,
            "metadata": {
                **times,
                "job_count": len(steps),
                **{f"{state}_count": states.count(state) for state in ("completed", "failed")},
            },
        }
    )


def _part(part: Part, calls: Mapping[UUID, CallQueue], errors: Mapping[int, dict[str, Any]]) -> Answer:
    if part.child is not None:
        return {"state": part.child.state, "workflow_id": str(part.child.id), "result": part.result}
    call = calls.get(part.call) if part.call else None
    state = part.outcome
    if state == "open":
        state = "pending" if call is None else _SHOWN.get(ojs_state(call.state), ojs_state(call.state))
    job_id = part.call and str(part.call)
    body: Answer = {"state": state, "job_id": job_id, "result": part.result, "error": errors.get(part.pk)}
    if call is not None:
        ended = call.finished_at if call.state == State.COMPLETED else None
        body |= {"started_at": call.started_at, "completed_at": ended}
    return without_nulls(body)


def _errors(parts: Sequence[Part], calls: Mapping[UUID, CallQueue]) -> dict[int, dict[str, Any]]:
    """Return why parts have failed, the first that half an answer has room for: each is written twice.

    A part that is a workflow has its errors in its parts (ojs-workflows, 9.6).
    """
    found = {}
    for part in parts:
        call = calls.get(part.call) if part.call else None
        if part.outcome == "failed" and (kept := part.error or (call and call.error)):
            found[part.pk] = {**write_error(kept), **without_nulls({"job_id": part.call and str(part.call)})}
    return dict(islice(found.items(), fitting(map(json_size, found.values()), ANSWER_BYTES // 4)))
