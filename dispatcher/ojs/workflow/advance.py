"""Workflows: chains, groups, batches and graphs of jobs, each part an ordinary call (ojs-workflows).

In a graph, steps wait for the steps that they name (ojs-http-binding, section 14).

To advance a workflow is to record how its parts ended and to start what follows. Any process may do so at any time: it
locks the workflow, and each part starts once. If the process dies midway, the next run continues. A part that can't be
sent fails with its error; while its queue is full, it is tried again.

`advance_all` reads only workflows with news: a part of theirs has ended and that is not recorded (`Part.ended_at`), or
the time has come that an earlier run set (`Workflow.look_at`).
"""

import json
import logging
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models.functions import Now
from pydantic import ValidationError

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.errors import FieldInvalid
from dispatcher.models import CallQueue
from dispatcher.ojs.errors import DuplicateCall, QueueFull
from dispatcher.ojs.jobs import job_of
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.pagination import json_bytes
from dispatcher.ojs.wire import ANSWER_BYTES, Problem, fitting, format_time
from dispatcher.ojs.workflow.plan import (
    GRAPH,
    STEP,
    End,
    NextPart,
    draft,
    enqueue_request,
    is_workflow,
    next_parts,
    start_parts,
)
from dispatcher.states import TERMINAL

logger = logging.getLogger(__name__)

_NOT_SENT: Final = (FieldInvalid, DuplicateCall, Problem, ValidationError)
"""Errors of a part itself: no retry can send it."""
_FAILED: Final = "failed to advance workflow %s"
ADVANCE: Final = "dispatcher.advance"
EVERY: Final = timedelta(seconds=1)
_BUDGET_S: Final = 0.5
"""The time after which `advance_all` starts no further batch; the next run continues."""
_MAX_WORKFLOWS: Final = 2_000
"""The maximum number of workflows in one run."""
_BATCH: Final = 100
"""The maximum number of workflows that one transaction locks."""
_RETRY_WHEN_FULL: Final = timedelta(seconds=1)
"""When a workflow is retried after a part found its queue full."""
_RETRY_AFTER_ERROR: Final = timedelta(seconds=10)
"""When a workflow is retried after an error."""


def start_workflow(plan: Mapping[str, Any]) -> Workflow:
    """Create a workflow from a validated plan, and start its first part, or all of them.

    Raises the errors of sending; then no workflow exists.
    """
    made = draft(plan, results={})
    with sql.atomic():
        made.save(using=conf().database, force_insert=True)
        following = next_parts(made, {})
        start_parts([] if isinstance(following, End) else following)
    made.refresh_from_db()
    return made


def advance(number: UUID) -> None:
    """Record how the parts of a workflow ended and start what follows, also in the workflows that contain it."""
    numbers = {number}
    while numbers:
        numbers = _advance(numbers, waits=True)


def try_advance(number: UUID) -> None:
    """Advance a workflow. An error is logged, and the periodic task tries again: what was recorded before stays."""
    try:
        advance(number)
    except Exception:
        logger.exception(_FAILED, number)


def advance_all() -> int:
    """Advance the workflows with news, oldest news first; return how many.

    After 0.5 seconds the rest is left to the next run.
    """
    until = monotonic() + _BUDGET_S
    numbers = sql.fetch("find_news", UUID, {"most": _MAX_WORKFLOWS})
    done = 0
    while numbers and (not done or monotonic() < until):
        batch, numbers = numbers[:_BATCH], numbers[_BATCH:]
        numbers += [each for each in _advance_safely(batch) if each not in numbers]
        done += len(batch)
    return done


def cancel_workflow(workflow: Workflow) -> tuple[int, int] | None:
    """Cancel a workflow: waiting parts are cancelled, running ones may finish.

    Return how many were cancelled, and how many had been completed; None if the workflow does not run any more.
    """
    with sql.atomic():
        locked = Workflow.objects.select_for_update().filter(id=workflow.id, state="running").first()
        if locked is None:
            return None
        _record([locked.id])
        parts = list(locked.parts.all())
        calls = [part.call for part in parts if part.call is not None and part.outcome == "open"]
        done = sum(part.outcome == "completed" for part in parts)
        locked.state = "cancelled"
        _save([locked], {})
    cancelled = len(api.cancel(calls))
    for child in Workflow.objects.filter(parent=workflow, state="running"):
        if (inside := cancel_workflow(child)) is not None:
            cancelled, done = cancelled + inside[0], done + inside[1]
    return cancelled, done


def advance_after(call: CallQueue) -> None:
    """Advance the workflow of a call that has ended; see try_advance."""
    belongs = (job_of(call).envelope or {}).get("workflow")
    if belongs and call.state in TERMINAL:
        try_advance(UUID(belongs["id"]))


def parts_of(workflow: Workflow) -> Sequence[Part]:
    """Return the started parts of a workflow, in order; results only of the first that half an answer has room for."""
    rows = workflow.parts.select_related("child").annotate(bytes=json_bytes("result")).order_by("id")
    parts = list(rows.defer("result", "child__plan", "child__callbacks", "child__results"))
    shown = parts[: fitting((part.bytes for part in parts), ANSWER_BYTES // 2)]
    results = dict(workflow.parts.filter(id__in=[part.id for part in shown]).values_list("id", "result"))
    for part in parts:
        part.result = results.get(part.id)
    return parts


def _advance_safely(numbers: Sequence[UUID]) -> set[UUID]:
    """Advance workflows; after an error, each alone, so that none stops another. Return the parents of ended ones.

    A workflow that fails alone is retried in 10 seconds.
    """
    try:
        return _advance(numbers, waits=False)
    except Exception:
        _check_usable()
        if len(numbers) > 1:
            return {parent for number in numbers for parent in _advance_safely([number])}
        logger.exception(_FAILED, numbers[0])
        running = Workflow.objects.filter(id__in=numbers, state="running")
        running.update(look_at=Now() + _RETRY_AFTER_ERROR)
        return set()


def _advance(numbers: Collection[UUID], *, waits: bool) -> set[UUID]:
    """Record how the parts of workflows ended and start what follows; return the parents of those that ended.

    waits: for locks; otherwise a locked workflow is skipped, since another process advances it.
    """
    with sql.atomic():
        rows = Workflow.objects.select_for_update(skip_locked=not waits)
        locked = list(rows.filter(id__in=numbers).order_by("id"))
        if not locked:
            return set()
        # Of ended ones, too: their parts would be news for ever.
        _record(row.id for row in locked)
        workflows = {row.id: row for row in locked if row.state == "running"}
        retry_in: dict[UUID, timedelta] = {}
        todo = _ready(workflows.values())
        parts = _parts(todo)
        while todo:
            following = [each for workflow in todo for each in _next_parts(workflow, parts[workflow.id], retry_in)]
            refused = _start_each(following, retry_in)
            for part in refused:
                parts[part.workflow_id][part.role, part.place] = part
            todo = [workflows[number] for number in dict.fromkeys(part.workflow_id for part in refused)]
        _save(workflows.values(), retry_in)
        return {each.parent_id for each in workflows.values() if each.state != "running" and each.parent_id}


def _record(workflows: Iterable[UUID]) -> None:
    """Record how the open parts of workflows ended; the caller has locked the workflows."""
    lost = json.dumps(_error("not_found", "Its job was deleted before its end was recorded."))
    sql.change("record_parts", {"workflows": list(workflows), "lost": lost})


def _ready(workflows: Iterable[Workflow]) -> list[Workflow]:
    """Return the workflows in which a part may start: graphs, and those without an open part."""
    found = list(workflows)
    open_parts = Part.objects.filter(workflow__in=found, outcome="open")
    waiting = set(open_parts.values_list("workflow_id", flat=True).distinct())
    return [each for each in found if each.kind == GRAPH or each.id not in waiting]


def _parts(workflows: Collection[Workflow]) -> Mapping[UUID, dict[tuple[str, int], Part]]:
    """Return the started parts of workflows, by workflow, role and place."""
    found: dict[UUID, dict[tuple[str, int], Part]] = defaultdict(dict)
    if workflows:
        for part in Part.objects.filter(workflow__in=workflows).order_by("id"):
            found[part.workflow_id][part.role, part.place] = part
    return found


def _next_parts(
    workflow: Workflow, parts: Mapping[tuple[str, int], Part], retry_in: dict[UUID, timedelta]
) -> Sequence[NextPart]:
    """Return the parts of a workflow to start now, or set its end."""
    try:
        following = next_parts(workflow, parts)
    except Exception:
        # The others of this run are advanced all the same.
        logger.exception(_FAILED, workflow.id)
        retry_in[workflow.id] = _RETRY_AFTER_ERROR
        return []
    if isinstance(following, End):
        workflow.state, workflow.failed_part = following.state, following.failed_part
        return []
    return following


def _start_each(following: Sequence[NextPart], retry_in: dict[UUID, timedelta]) -> list[Part]:
    """Start parts of running workflows, all together if possible; return those that can't be sent and have failed.

    retry_in: receives when to retry the workflows whose queue is full, or which fail.
    """
    if not following:
        return []
    try:
        with sql.atomic():
            start_parts(following)
    except Exception:  # noqa: BLE001 -- each by itself then: the error comes again, for the one that has it
        _check_usable()
    else:
        return []
    refused: list[Part] = []
    full: set[str] = set()
    for each in following:
        # After a step that can't be sent, no other step of its workflow starts.
        if each.role != STEP or each.workflow.id not in {part.workflow_id for part in refused}:
            refused += _start_alone(each, retry_in, full)
    return refused


def _start_alone(each: NextPart, retry_in: dict[UUID, timedelta], full: set[str]) -> list[Part]:
    """Start one part; return it if it can't be sent.

    full: the queues that were full in this run; further parts for them wait.
    """
    try:
        if full and not is_workflow(each.plan) and enqueue_request(each).queue in full:
            retry_in[each.workflow.id] = _RETRY_WHEN_FULL
            return []
        with sql.atomic():
            start_parts([each])
    except QueueFull as error:
        full.add(error.queue)
        retry_in[each.workflow.id] = _RETRY_WHEN_FULL
    except _NOT_SENT as error:
        part = Part(workflow=each.workflow, role=each.role, place=each.place, outcome="failed", error=_refusal(error))
        part.save(using=conf().database)
        return [part]
    except Exception:
        _check_usable()
        logger.exception(_FAILED, each.workflow.id)
        retry_in[each.workflow.id] = _RETRY_AFTER_ERROR
    return []


def _save(workflows: Iterable[Workflow], retry_in: Mapping[UUID, timedelta]) -> None:
    """Store which workflows ended and when to retry the others; the caller has locked them."""
    changed = []
    for each in workflows:
        pause = retry_in.get(each.id)
        if each.state != "running":
            each.ended_at, pause = Now(), None
        elif pause is None and each.look_at is None:
            continue
        each.look_at = None if pause is None else Now() + pause
        changed.append(each)
    database = conf().database
    fields = ["state", "failed_part", "ended_at", "look_at"]
    Workflow.objects.using(database).bulk_update(changed, fields)
    if within := [each for each in changed if each.state != "running" and each.parent_id]:
        Part.objects.using(database).filter(child__in=within).update(ended_at=Now())


def _check_usable() -> None:
    """Raise the current error if the database can't be used."""
    error = sys.exception()
    if error is not None and not connections[conf().database].is_usable():
        raise error


def _refusal(refused: Exception) -> dict[str, Any]:
    """Return the error of a part that could not be sent, as the response to a PUSH of it."""
    if isinstance(refused, Problem):
        return _error(refused.code, refused.message)
    return _error("duplicate" if isinstance(refused, DuplicateCall) else "invalid_request", str(refused))


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": code, "code": code, "message": message, "occurred_at": format_time(sql.now())}
