"""What happened to a workflow, told from its row and those of its parts (ojs-events, section 3.5)."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from dispatcher.models import CallQueue, Part, Workflow
from dispatcher.ojs.events.event import event, milliseconds
from dispatcher.ojs.job import write_error
from dispatcher.states import State

Told = dict[str, Any]


def of_workflow(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Iterator[Told]:
    """Tell what happened to one workflow. Of a part whose call is deleted by now, nothing is known."""
    number, total = str(workflow.id), len(workflow.plan)
    about: Told = {"workflow_id": number, "workflow_name": workflow.name}
    yield event("workflow.started", workflow.created_at, number, {**about, "total_steps": total})
    steps = [(part, calls.get(part.call)) for part in parts if part.call is not None and part.role == "step"]
    ended = [(part, call) for part, call in steps if call is not None]
    # As its call says it: the part is told of its outcome a little later, when others may have been told already.
    done = sorted(
        ((part, call) for part, call in ended if call.state == State.COMPLETED and call.finished_at is not None),
        key=lambda each: each[1].position,
    )
    for place, (part, call) in enumerate(done, 1):
        if call.finished_at is not None:
            took = milliseconds(call.started_at or call.created_at, call.finished_at)
            told = {**about, "step_id": _name(workflow, part), "step_type": call.task, "duration_ms": took}
            told["steps_remaining"] = total - place
            yield event("workflow.step_completed", call.finished_at, number, told, mark=part.place)
    if workflow.ended_at is None:
        return
    if workflow.state == "completed":
        took = milliseconds(workflow.created_at, workflow.ended_at)
        told = {**about, "total_steps": total, "duration_ms": took}
        yield event("workflow.completed", workflow.ended_at, number, told)
    if workflow.state == "failed":
        yield event("workflow.failed", workflow.ended_at, number, {**about, **_failure(workflow, parts, calls)})


def _name(workflow: Workflow, part: Part) -> str:
    """Return what a step is called: where it stands, if it has no name."""
    return str(workflow.plan[part.place].get("id", part.place))


def _failure(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Told:
    for part in parts:
        call = calls.get(part.call) if part.call else None
        if part.role != "step" or part.outcome in ("open", "completed") or not (part.error or call):
            continue
        kept = part.error or (call and call.error)
        error = write_error(kept) if kept else {"code": "cancelled", "message": "it was cancelled"}
        kind = workflow.plan[part.place].get("type")
        return {"failed_step_id": _name(workflow, part), "failed_step_type": kind, "error": error}
    return {}
