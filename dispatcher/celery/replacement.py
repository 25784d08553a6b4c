"""What `self.replace()` of a dispatched task makes of its call: another task's, under its id, without an attempt."""

import json
from dataclasses import replace

from celery import Signature, Task

from dispatcher import groups, lanes, sql, validate
from dispatcher.celery import send_task
from dispatcher.engine import compose
from dispatcher.errors import CallInvalid
from dispatcher.lanes import mixture
from dispatcher.lifecycle.run import ReplaceAsked
from dispatcher.limited import keys_of
from dispatcher.models import CallQueue
from dispatcher.request import Changes


def asked(task: Task, signature: Signature) -> ReplaceAsked:
    """Return what a running task asks for that replaces itself by this signature, which has its id.

    A call that spends the keys declared for its task spends those of the other task from now on; one that was sent with
    keys of its own keeps these. So it is with retries. Raises CallInvalid, for a workflow as well, or PolicyInvalid.
    """
    # The rest of the chain that the task is part of follows it.
    first = signature.tasks[0] if signature.subtask_type == "chain" else signature
    if type(first) is not Signature or first.subtask_type or first.id != task.request.id:
        raise CallInvalid(
            "replace",
            "a call can be replaced by one task, and not by a workflow, which is no call; start that by .delay(), with "
            "the limits of its tasks, and return.",
        )
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
