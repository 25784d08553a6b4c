"""Events of a workflow, built from its row and the rows of its parts (ojs-events, section 3.5)."""

from collections.abc import Iterator, Mapping
from uuid import UUID

from dispatcher.models import CallQueue
from dispatcher.ojs.events.event import Event, build_event, duration_ms
from dispatcher.ojs.job import write_error
from dispatcher.ojs.models import Part, Workflow
from dispatcher.states import State


def workflow_events(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Iterator[Event]:
    """Return the events of one workflow. A part whose call was deleted has none."""
    number, total = str(workflow.id), len(workflow.plan)
    about: Event = {"workflow_id": number, "workflow_name": workflow.name}
    yield build_event("workflow.started", workflow.created_at, number, {**about, "total_steps": total})
    steps = [(part, calls[part.call]) for part in parts if part.role == "step" and part.call and part.call in calls]
    # From the call, not from the part: the part's outcome is recorded later, when newer events may be visible already.
    done = [
        (call, part, call.finished_at) for part, call in steps if call.state == State.COMPLETED and call.finished_at
    ]
    for place, (call, part, ended_at) in enumerate(sorted(done, key=lambda each: each[0].position), 1):
        took = duration_ms(call.started_at or call.created_at, ended_at)
        data = {**about, "step_id": _name(workflow, part), "step_type": call.task, "duration_ms": took}
        data["steps_remaining"] = total - place
        yield build_event("workflow.step_completed", ended_at, number, data, discriminator=part.place)
    if workflow.ended_at is None:
        return
    if workflow.state == "completed":
        took = duration_ms(workflow.created_at, workflow.ended_at)
        data = {**about, "total_steps": total, "duration_ms": took}
        yield build_event("workflow.completed", workflow.ended_at, number, data)
    if workflow.state == "failed":
        yield build_event("workflow.failed", workflow.ended_at, number, {**about, **_failure(workflow, parts, calls)})


def _name(workflow: Workflow, part: Part) -> str:
    """Return the id of a step, or its index if it has none."""
    return str(workflow.plan[part.place].get("id", part.place))


def _failure(workflow: Workflow, parts: list[Part], calls: Mapping[UUID, CallQueue]) -> Event:
    for part in parts:
        call = calls.get(part.call) if part.call else None
        if part.role != "step" or part.outcome in ("open", "completed") or not (part.error or call):
            continue
        kept = part.error or (call and call.error)
        error = write_error(kept) if kept else {"code": "cancelled", "message": "it was cancelled"}
        kind = workflow.plan[part.place].get("type")
        return {"failed_step_id": _name(workflow, part), "failed_step_type": kind, "error": error}
    return {}
