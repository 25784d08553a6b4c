"""One call in a loop's process: the request that Celery's tracer is given, and how the attempt ended."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.app.task import Context
from celery.app.trace import LOG_RECEIVED
from celery.exceptions import Ignore

from dispatcher import ending
from dispatcher.celery import RUN
from dispatcher.ending import Ending
from dispatcher.engine import attempt
from dispatcher.engine.direct import Handle
from dispatcher.lifecycle import claim, run
from dispatcher.lifecycle.claim import Claimed
from dispatcher.lifecycle.run import Outcome
from dispatcher.lifecycle.take import Start
from dispatcher.messages.message import parts
from dispatcher.request import Changes
from dispatcher.states import TERMINAL
from dispatcher.worker.events import EventPipe
from dispatcher.worker.shared import Running

logger = logging.getLogger("celery.worker.strategy")
"""That of Celery for the messages that a worker receives."""


@dataclass(frozen=True, kw_only=True)
class Missed:
    """The process could not begin in time: the call waits for another start, and no attempt is spent."""


@dataclass(frozen=True, kw_only=True)
class PutOff:
    """The attempt spends nothing but time: the provider stops the call's keys, or the named one, for this long."""

    wait: timedelta
    key: str | None


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The attempt failed, and the next one is made with these changes."""

    ending: Ending
    changes: Changes


End = Ending | Missed | PutOff | Changed


@dataclass(eq=False, kw_only=True)
class Run:
    """A call that a loop has taken: from its start to the record of its end."""

    start: Start
    slack: timedelta
    """How much later than its start it may begin: what its limits allow for was moved as far."""
    end: End | None = None

    @property
    def handle(self) -> Handle:
        """What names its start in the database."""
        return self.start.call.id, self.start.call.ticket

    def failed(self, error: BaseException) -> Ending:
        """Return the end of an attempt that failed outside of the task."""
        return ending.failed(error, attempt=self.start.attempt, policy=self.start.retry)

    @property
    def claimed(self) -> Claimed:
        """Its start, as a claim gives it: its ticket is its claim, too."""
        start = self.start
        return Claimed(
            claim_id=start.call.ticket,
            attempt=start.attempt,
            start_at=start.start_at,
            retry=start.retry,
            is_paced=start.is_paced,
            is_counted=start.is_counted,
            slack=self.slack,
        )

    def attempt(self, work: Callable[[], Any]) -> Outcome:
        """Make the attempt; return how it ended, for Celery. Raises Ignore if it did not begin."""
        with attempt.run_here(self.start.call.ticket):
            results: list[Any] = []
            try:
                if not claim.is_in_time(self.claimed):
                    self.end = Missed()
                    raise Ignore
            except SoftTimeLimitExceeded as limit:
                self.end = Missed()
                raise Ignore from limit
            try:
                outcome = run.run(work, results=results)
            except SoftTimeLimitExceeded as limit:
                outcome = run.Returned(result=results[0]) if results else run.raised(limit)
            self.end = end_of(outcome, attempt=self.start.attempt, policy=self.start.retry)
            return _decided(outcome, self.end)


def limits_of(app: Celery, run_: Run, *, soft: float | None, hard: float | None) -> Running:
    """Return what the main process must know of a call that runs from its start on: its time limits, above all.

    soft, hard: those of the worker, for tasks without limits of their own; in seconds.
    """
    call = run_.start.call
    task, options = app.tasks[call.task], call.options or {}
    began = max(monotonic(), claim.monotonic_of(run_.start.start_at))
    soft = options.get("soft_time_limit") or task.soft_time_limit or soft
    hard = options.get("time_limit") or task.time_limit or hard
    return Running(
        call=call.id,
        ticket=call.ticket,
        task=call.task,
        attempt=run_.start.attempt,
        began=began,
        soft=began + soft if soft else inf,
        hard=began + hard if hard else inf,
    )


def execute(app: Celery, run_: Run, hostname: str, events: EventPipe | None) -> End:
    """Run a call's task by Celery's tracer; return how the attempt ended. events: where its events go, if they do."""
    call = run_.start.call
    task = app.tasks[call.task]
    try:
        headers, properties, (args, kwargs, callbacks) = parts(app, call)
    except Exception as error:  # noqa: BLE001 -- arguments or options that can't be read end the attempt
        return run_.failed(error)
    request = {
        **headers,
        **(callbacks or {}),
        "args": args,
        "kwargs": kwargs,
        "hostname": hostname,
        "is_eager": False,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "delivery_info": {
            "exchange": "",
            "routing_key": call.queue,
            "priority": properties.get("priority"),
            "redelivered": False,
        },
    }
    # Those of the message, which a task may pass on: Celery takes all that it does not know for them.
    request |= {"headers": Context(request).headers, RUN: run_}
    logger.info(LOG_RECEIVED, {"name": call.task, "id": str(call.id)})
    if events is not None:
        events.received(task, request)
    result, info, runtime, _ = task.__trace__(str(call.id), args, kwargs, request)
    if events is not None:
        events.ended(task, request, info, result, runtime)
    return run_.end or run_.failed(RuntimeError("the task's tracer came to no end of the attempt"))


def end_of(outcome: Outcome, *, attempt: int, policy: Mapping[str, Any] | None) -> End:
    """Return how an attempt ends with this outcome."""
    match outcome:
        case run.Returned():
            return ending.completed(outcome.stored)
        case run.Ignored():
            return ending.completed(None)
        case run.Stopped():
            return PutOff(wait=outcome.wait, key=outcome.key)
        case run.Failed():
            failed = ending.failed(
                outcome.error, attempt=attempt, policy=policy, wait=outcome.wait, may_retry=outcome.may_retry
            )
            return failed if outcome.changes is None else Changed(ending=failed, changes=outcome.changes)


def _decided(outcome: Outcome, end: End) -> Outcome:
    """Return the outcome with the wait that was decided, so that Celery reports the same."""
    decided = end.ending if isinstance(end, Changed) else end
    if isinstance(outcome, run.Failed) and isinstance(decided, Ending):
        return run.Failed(error=outcome.error, wait=decided.wait, may_retry=decided.state not in TERMINAL)
    return outcome
