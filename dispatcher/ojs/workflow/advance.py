"""Workflows: chains, groups and batches of jobs (ojs-workflows), each part an ordinary call.

A graph is a fourth kind: steps that wait for those that they name (ojs-http-binding, section 14).

A look at workflows records how their parts ended and starts what follows. It may run at any time, in any process, any
number of times: it locks the workflows, and a part is started once. What a process leaves behind that dies half way,
the next look does. A part that can't be sent has failed, with its error; while its queue is full, it is tried again.

`advance_all` looks only at workflows with news: a call of theirs has ended (`CallQueue.is_awaited`), a workflow in them
has ended, or it is the time that an earlier look has set (`Workflow.look_at`).
"""

import json
import logging
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models.functions import Now
from pydantic import ValidationError

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid, DuplicateCall, PolicyInvalid, QueueFull
from dispatcher.models import CallQueue, Part, Workflow
from dispatcher.ojs.wire import Problem
from dispatcher.ojs.workflow.plan import GRAPH, STEP, End, Next, follow, is_workflow
from dispatcher.ojs.workflow.start import draft, start_parts, wanted

logger = logging.getLogger(__name__)

_NOT_SENT: Final = (CallInvalid, PolicyInvalid, DuplicateCall, Problem, ValidationError)
"""What is wrong with a part itself, so that no later look could send it."""
_CANNOT: Final = "workflow %s can't go on"
_ADVANCE: Final = "dispatcher.advance"
_EVERY_S: Final = 1
_BUDGET_S: Final = 0.5
"""How long one run of `advance_all` begins to look at workflows; the next run goes on."""
_MOST: Final = 2_000
"""The most workflows of one run."""
_BATCH: Final = 100
"""The most workflows that one transaction locks."""
_CHECKED: Final = 200
"""How many open parts one run checks for an end without news."""
_FULL: Final = timedelta(seconds=1)
"""When a workflow is looked at again whose part found its queue full."""
_BROKEN: Final = timedelta(seconds=10)
"""When a workflow is looked at again after an error."""


@dataclass(frozen=True, kw_only=True)
class _WithNews:
    id: UUID


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """The workflows of one slice of open parts that have one without a call that runs or waits, and where it ends."""

    workflows: list[UUID]
    after: UUID
    after_part: int


class _Slices:
    """Where this process goes on with its check of open parts."""

    after: UUID = UUID(int=0)
    after_part: int = 0


def start_workflow(plan: Mapping[str, Any]) -> Workflow:
    """Make a workflow of a checked plan, and start the first of its parts, or all of them.

    Raises what sending them raises; then there is no workflow.
    """
    made = draft(plan, results={})
    with sql.atomic():
        made.save(using=conf().database, force_insert=True)
        following = follow(made, {})
        start_parts([] if isinstance(following, End) else following)
    made.refresh_from_db()
    return made


def advance(number: UUID) -> None:
    """Do what follows from how the parts of a workflow ended, and in the workflows that it is a part of."""
    numbers = {number}
    while numbers:
        numbers = _look(numbers, waits=True)


def try_advance(number: UUID) -> None:
    """Advance a workflow; an error goes to the log."""
    try:
        advance(number)
    except Exception:
        _check_usable()
        logger.exception(_CANNOT, number)


def advance_all() -> int:
    """Look at the workflows with news, those with the oldest news first; return how many there were.

    What is left after 0.5 seconds is left to the next run.
    """
    until = monotonic() + _BUDGET_S
    numbers = _find()
    done = 0
    while numbers and (not done or monotonic() < until):
        batch, numbers = numbers[:_BATCH], numbers[_BATCH:]
        numbers += [each for each in _look_safely(batch) if each not in numbers]
        done += len(batch)
    return done


def cancel_workflow(workflow: Workflow) -> tuple[int, int] | None:
    """End a workflow: what waits is cancelled, what runs may finish.

    Return how many were cancelled, and how many had been completed before; None if the workflow does not run any more.
    """
    database = conf().database
    with sql.atomic():
        locked = Workflow.objects.using(database).select_for_update().filter(id=workflow.id, state="running").first()
        if locked is None:
            return None
        _record([locked.id])
        parts = list(locked.parts.all())
        calls = [part.call for part in parts if part.call is not None and part.outcome == "open"]
        done = sum(part.outcome == "completed" for part in parts)
        locked.state = "cancelled"
        _save([locked], {})
    cancelled = len(api.cancel(calls))
    for child in Workflow.objects.using(database).filter(parent=workflow, state="running"):
        if (inside := cancel_workflow(child)) is not None:
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


def workflow_of(call: CallQueue) -> UUID | None:
    """Return the workflow that a call is a part of."""
    belongs = (call.envelope or {}).get("workflow")
    return UUID(belongs["id"]) if belongs else None


def parts_of(workflow: Workflow) -> Sequence[Part]:
    """Return the parts of a workflow that were started, in their order."""
    return list(workflow.parts.select_related("child").order_by("id"))


def _find() -> list[UUID]:
    """Return the workflows with news, and those of the next slice of open parts that should have had some."""
    params = {"after": _Slices.after, "after_part": _Slices.after_part, "most": _CHECKED}
    with sql.together():
        sql.ask("settle_awaited", object, {"most": _MOST, "now": None})
        news = sql.ask("workflows_with_news", _WithNews, {"most": _MOST, "now": None})
        checked = sql.ask("check_parts", _Checked, params)
    found = checked.row()
    _Slices.after, _Slices.after_part = found.after, found.after_part
    return list(dict.fromkeys([*(row.id for row in news.rows()), *found.workflows]))


def _look_safely(numbers: Sequence[UUID]) -> set[UUID]:
    """Look at workflows; where that fails, at each alone, so that none stops another. Return the parents of ended ones.

    One that fails alone is looked at again in 10 seconds.
    """
    try:
        return _look(numbers, waits=False)
    except Exception:
        _check_usable()
        if len(numbers) > 1:
            return {parent for number in numbers for parent in _look_safely([number])}
        logger.exception(_CANNOT, numbers[0])
        running = Workflow.objects.using(conf().database).filter(id__in=numbers, state="running")
        running.update(look_at=Now() + _BROKEN)
        return set()


def _look(numbers: Collection[UUID], *, waits: bool) -> set[UUID]:
    """Record how the parts of workflows ended, and do what follows; return the parents of those that ended.

    waits: for the locks; without, workflows that are locked are left to whoever looks at them now.
    """
    with sql.atomic():
        rows = Workflow.objects.using(conf().database).select_for_update(skip_locked=not waits)
        workflows = {row.id: row for row in rows.filter(id__in=numbers, state="running").order_by("id")}
        if not workflows:
            return set()
        _record(workflows)
        later: dict[UUID, timedelta] = {}
        todo = _ready(workflows.values())
        parts = _parts(todo)
        while todo:
            following = [each for workflow in todo for each in _follow(workflow, parts[workflow.id], later)]
            refused = _start_each(following, later)
            for part in refused:
                parts[part.workflow_id][part.role, part.place] = part
            todo = [workflows[number] for number in dict.fromkeys(part.workflow_id for part in refused)]
        _save(workflows.values(), later)
        return {each.parent_id for each in workflows.values() if each.state != "running" and each.parent_id}


def _record(workflows: Iterable[UUID]) -> None:
    """Record how the open parts of workflows ended; the caller has locked the workflows."""
    lost = json.dumps(_error("not_found", "Its job was deleted before it was seen to end."))
    sql.change("record_parts", {"workflows": list(workflows), "lost": lost})


def _ready(workflows: Iterable[Workflow]) -> list[Workflow]:
    """Return the workflows in which something may follow: graphs, and those without an open part."""
    found = list(workflows)
    open_parts = Part.objects.using(conf().database).filter(workflow__in=found, outcome="open")
    waiting = set(open_parts.values_list("workflow_id", flat=True).distinct())
    return [each for each in found if each.kind == GRAPH or each.id not in waiting]


def _parts(workflows: Collection[Workflow]) -> Mapping[UUID, dict[tuple[str, int], Part]]:
    """Return the parts of workflows that were started, by workflow, role and place."""
    found: dict[UUID, dict[tuple[str, int], Part]] = defaultdict(dict)
    if workflows:
        for part in Part.objects.using(conf().database).filter(workflow__in=workflows).order_by("id"):
            found[part.workflow_id][part.role, part.place] = part
    return found


def _follow(workflow: Workflow, parts: Mapping[tuple[str, int], Part], later: dict[UUID, timedelta]) -> Sequence[Next]:
    """Return the parts of a workflow to start now; its end is noted on it."""
    try:
        following = follow(workflow, parts)
    except Exception:
        logger.exception(_CANNOT, workflow.id)
        later[workflow.id] = _BROKEN
        return []
    if isinstance(following, End):
        workflow.state, workflow.failed_part = following.state, following.failed_part
        return []
    return following


def _start_each(following: Sequence[Next], later: dict[UUID, timedelta]) -> list[Part]:
    """Start parts of workflows that run, all at once if that goes; return those that can't be sent: they have failed.

    later: gets when to look again at the workflows whose queue is full, or which fail.
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
            refused += _start_alone(each, later, full)
    return refused


def _start_alone(each: Next, later: dict[UUID, timedelta], full: set[str]) -> list[Part]:
    """Start one part; return it if it can't be sent.

    full: the queues that had no room for a part of this look; what is for them waits.
    """
    try:
        if full and not is_workflow(each.plan) and wanted(each).queue in full:
            later[each.workflow.id] = _FULL
            return []
        with sql.atomic():
            start_parts([each])
    except QueueFull as error:
        full.add(error.queue)
        later[each.workflow.id] = _FULL
    except _NOT_SENT as error:
        part = Part(workflow=each.workflow, role=each.role, place=each.place, outcome="failed", error=_refusal(error))
        part.save(using=conf().database)
        return [part]
    except Exception:
        _check_usable()
        logger.exception(_CANNOT, each.workflow.id)
        later[each.workflow.id] = _BROKEN
    return []


def _save(workflows: Iterable[Workflow], later: Mapping[UUID, timedelta]) -> None:
    """Store which workflows ended and when to look at the others again; the caller has locked them."""
    changed = []
    for each in workflows:
        pause = later.get(each.id)
        if each.state != "running":
            each.ended_at = Now()
            # Until its parent has been looked at: `advance_all` does that if this process does not.
            each.look_at = Now() if each.parent_id else None
        elif pause is None and each.look_at is None:
            continue
        else:
            each.look_at = None if pause is None else Now() + pause
        changed.append(each)
    fields = ["state", "failed_part", "ended_at", "look_at"]
    Workflow.objects.using(conf().database).bulk_update(changed, fields)


def _check_usable() -> None:
    """Raise the error that is handled now if the database can't be used."""
    error = sys.exception()
    if error is not None and not connections[conf().database].is_usable():
        raise error


def _refusal(refused: Exception) -> dict[str, Any]:
    """Return why a part could not be sent, as the answer to a push of it would say."""
    if isinstance(refused, Problem):
        return _error(refused.code, refused.message)
    return _error("duplicate" if isinstance(refused, DuplicateCall) else "invalid_request", str(refused))


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": code, "code": code, "message": message, "occurred_at": sql.now().isoformat()}
