"""One call in a loop's process: the request that Celery's tracer is given, and how the attempt ended."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.app.trace import LOG_RECEIVED
from celery.exceptions import Ignore

from dispatcher import ending
from dispatcher.celery import RUN, failures
from dispatcher.ending import Ending
from dispatcher.engine.attempt import Attempt
from dispatcher.engine.direct import Handle
from dispatcher.lifecycle import claim, run
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.run import Outcome
from dispatcher.lifecycle.take import Start
from dispatcher.messages import message
from dispatcher.worker.events import EventPipe
from dispatcher.worker.shared import Running

logger = logging.getLogger("celery.worker.strategy")
"""That of Celery for the messages that a worker receives."""


End = Ending | Refused
"""How an attempt ended; Refused: it did not begin, and spends nothing."""


@dataclass(eq=False, kw_only=True)
class Run:
    """A call that a loop has taken: from its start to the record of its end."""

    start: Start
    slack: timedelta
    """How much later than its start it may begin: what its limits allow for was moved as far."""
    end: End | None = None
    error: BaseException | None = None
    """What the task raised."""

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

    @property
    def ended(self) -> Ended:
        """Its end, for a trip to record; one that did not begin has none."""
        assert isinstance(self.end, Ending)  # noqa: S101 -- its callers look
        return self.start.ended(self.end)

    @property
    def is_plain(self) -> bool:
        """Whether a trip records its end, together with others."""
        return isinstance(self.end, Ending) and self.end.is_plain

    def attempt(self, work: Callable[[], Any]) -> Outcome:
        """Make the attempt; return how it ended, for Celery. Raises Ignore if it did not begin."""
        start = self.start
        this = Attempt(start.call.id, start.call.ticket, claim_id=start.call.ticket, start=self.claimed)
        outcome = this.to_its_end(partial(this.make, work))
        if isinstance(outcome, Refused):
            self.end = outcome
            raise Ignore
        self.error = getattr(outcome, "error", None)
        self.end = run.ending_of(outcome, attempt=start.attempt, policy=start.retry)
        return run.settled(outcome, self.end)


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


def execute(
    app: Celery, run_: Run, hostname: str, events: EventPipe | None, *, tracer: Callable[..., Any] | None = None
) -> End:
    """Run a call's task by Celery's tracer; return how the attempt ended. events: where its events go, if they do.

    tracer: one for eager tasks, in place of the task's own.
    """
    call = run_.start.call
    task = app.tasks[call.task]
    try:
        request = message.request(app, call, hostname)
    except Exception as error:  # noqa: BLE001 -- arguments or options that can't be read end the attempt
        return run_.failed(error)
    request |= {RUN: run_, "is_eager": tracer is not None}
    logger.info(LOG_RECEIVED, {"name": call.task, "id": str(call.id)})
    if events is not None:
        events.received(task, request)
    trace = tracer or task.__trace__
    result, info, runtime, _ = trace(str(call.id), request["args"], request["kwargs"], request)
    if info is not None and info.state == states.REJECTED and tracer is None:
        failures.reject(task, Context(request), info.retval)
    if events is not None:
        events.ended(task, request, info, result, runtime)
    return run_.end or run_.failed(RuntimeError("the task's tracer came to no end of the attempt"))
