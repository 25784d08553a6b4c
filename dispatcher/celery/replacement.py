"""What `self.replace()` of a dispatched task makes of its call: another task's, under its id, without an attempt.

A workflow in its place has calls of its own; the last of them gets the id, and the result, when it is sent.
"""

import json
from dataclasses import replace
from typing import Final
from uuid import UUID

from celery import Signature, Task
from celery.exceptions import Ignore

from dispatcher import ending, groups, lanes, sql, validate
from dispatcher.celery import send_task
from dispatcher.engine import compose, ends
from dispatcher.lanes import mixture
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.run import ReplaceAsked
from dispatcher.limited import keys_of
from dispatcher.models import CallQueue
from dispatcher.request import Changes

_REPLACED: Final = ending.completed(None)


class WorkflowAsked(Ignore):
    """Raised by `self.replace()` with a workflow, which starts when the task's own code has come to its end."""

    def __init__(self, workflow: Signature, call_id: UUID, ticket: UUID) -> None:
        """Keep what starts, and whose call ends then: until then it holds its room."""
        self.workflow = workflow
        self.ended = Ended(call_id=call_id, ticket=ticket, claim_id=None, ending=_REPLACED)
        super().__init__("replaced by a workflow")

    def start(self) -> None:
        """Start the workflow, and end the call that it replaces. Raises CallInvalid or PolicyInvalid.

        Both or neither; and a member that is quick waits for that before it sends the last one under the call's id. The
        end comes last: what it locks of the keys, their other calls would wait for.
        """
        with sql.outside(), sql.atomic():
            held = CallQueue.objects.filter(id=self.ended.call_id, ticket=self.ended.ticket)
            if held.select_for_update(no_key=True).first() is not None:
                self.workflow.delay()
                ends.record_one(self.ended, patience=sql.PATIENCE)


def asked(task: Task, signature: Signature, *, ticket: UUID) -> Ignore:
    """Return what a running task raises that replaces itself by this signature, which has its id.

    A call that spends the keys declared for its task spends those of the other task from now on; one that was sent with
    keys of its own keeps these. So it is with retries. Raises CallInvalid or PolicyInvalid.
    """
    # The rest of the chain that the task is part of follows it.
    first = signature.tasks[0] if signature.subtask_type == "chain" else signature
    if type(first) is not Signature or first.subtask_type or first.id != task.request.id:
        return WorkflowAsked(signature, UUID(task.request.id), ticket)
    call = CallQueue.objects.get(id=task.request.id)
    names = lanes.kind_of(call).names
    spent = {groups.any_of(name) if groups.is_group(name) else name: call.costs.get(name, 1) for name in names}
    declared = keys_of(call.task, validate.from_json(call.args), validate.from_json(call.kwargs), call.options or {})
    asks, given = send_task.asked_by(signature, task.request.id, keys=None if spent == (declared or {}) else spent)
    if call.retry is None or call.retry.get("decided_by") != "task":
        asks = replace(asks, retry=call.retry)
    (draft,) = compose.drafts([asks])
    missing = lanes.missing_keys([draft.kind], {})
    mixture.check_kinds([draft.kind], missing)
    changes = Changes(
        task=draft.task,
        costs=json.dumps(draft.costs),
        placement=json.dumps(lanes.placement_of(draft.kind, missing, {})),
        queue=draft.kind.queue,
        priority=None if given.get("priority") is None else draft.kind.priority,
        expires_at=draft.expires_at,
        expires_in=draft.expires_in,
        **{name: draft.texts.get(name) for name in ("args", "kwargs", "headers", "options", "retry")},
    )
    wait = draft.scheduled_in if draft.scheduled_at is None else draft.scheduled_at - sql.now()
    return ReplaceAsked(changes, wait)
