"""Fed: the run of a call that a feed has started, in the pool's process, which needs no connection of the dispatcher.

The end travels to the worker's main process with Celery's own result, through the pool's pipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task
from celery.app.trace import trace_ok_t
from celery.exceptions import Ignore

from dispatcher import ending
from dispatcher.conf import conf
from dispatcher.ending import Ending
from dispatcher.engine import attempt as engine_attempt
from dispatcher.lifecycle import claim, run
from dispatcher.lifecycle.take import Start
from dispatcher.request import Changes
from dispatcher.states import TERMINAL

FED: Final = "dispatcher_fed"
"""The header of a call that a feed has started: see `header`."""
_ENDS: Final = "dispatcher_ends"


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


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The process is gone, and the attempt with it; the feed's thread records that, by its connection."""

    record: Callable[[], None]


End = Ending | Missed | PutOff | Changed | Lost
"""How a run ended, as its process reports it."""


class _Carried(str):
    """The text of a result, as Celery sends it to the worker's main process, with the end of the run."""

    __slots__ = ("dispatcher_end",)
    dispatcher_end: End

    def __reduce__(self) -> tuple[Any, ...]:
        return _carried, (str(self), self.dispatcher_end)


def _carried(text: str, end: End) -> _Carried:
    carried = _Carried(text)
    carried.dispatcher_end = end
    return carried


_OF_LEASE: Final = 0.9
"""By which part of its lease a call without a window or a throttle must have begun: until then it is no other's."""


def _lateness(start: Start, slack: timedelta) -> timedelta:
    """Return how long after its start the process may begin."""
    if not start.keys:
        return conf().run_lease * _OF_LEASE
    claimed = claim.Claimed(
        claim_id=start.call.ticket,
        attempt=start.attempt,
        start_at=start.start_at,
        retry=start.retry,
        is_paced=start.is_paced,
        is_counted=start.is_counted,
        slack=slack,
    )
    return claimed.lateness


def header(start: Start, slack: timedelta) -> dict[str, Any]:
    """Return what the process must know: when to begin, by the machine's monotonic clock, and how late it may be."""
    return {
        "begin": claim.monotonic_of(start.start_at),
        "lateness": _lateness(start, slack).total_seconds(),
        "claim": str(start.call.ticket),
        "attempt": start.attempt,
        "retry": start.retry,
    }


def end_in(result: Any) -> End | None:
    """Return the end that a result of Celery's carries; None if the run never came to one."""
    return getattr(result, "dispatcher_end", None)


def carry_ends(app: Celery) -> None:
    """Let the tracers of all tasks carry the ends of fed runs."""
    for task in app.tasks.values():
        trace = task.__trace__
        if trace is not None and not hasattr(trace, "carries_ends"):
            task.__trace__ = _carrying(trace)


def _carrying(trace: Callable[..., Any]) -> Callable[..., Any]:
    def carrying(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
        if not request or FED not in request:
            return trace(uuid, args, kwargs, request)
        ends: list[End] = []
        result, info, runtime, text = trace(uuid, args, kwargs, {**request, _ENDS: ends})
        if ends and info is not None:
            result.dispatcher_end = ends[0]
        elif ends:
            text = _carried(text if isinstance(text, str) else str(text), ends[0])
        return trace_ok_t(result, info, runtime, text)

    carrying.carries_ends = True  # type: ignore[attr-defined]
    return carrying


def attempt_of(task: Task, work: Callable[[], Any]) -> run.Outcome:
    """Run a fed call once; return how its attempt ended, for Celery. Raises Ignore if it did not begin."""
    given: Mapping[str, Any] = task.request.get(FED)
    ends: list[End] = task.request.get(_ENDS)
    with engine_attempt.run_here(UUID(given["claim"])):
        return _run(given, ends, work)


def _run(given: Mapping[str, Any], ends: list[End], work: Callable[[], Any]) -> run.Outcome:
    results: list[Any] = []
    try:
        if not claim.is_in_time_at(given["begin"], given["lateness"]):
            ends.append(Missed())
            raise Ignore
    except SoftTimeLimitExceeded as limit:
        ends.append(Missed())
        raise Ignore from limit
    try:
        outcome = run.run(work, results=results)
    except SoftTimeLimitExceeded as limit:
        outcome = run.Returned(result=results[0]) if results else run.raised(limit)
    end = end_of(outcome, attempt=given["attempt"], policy=given["retry"])
    ends.append(end)
    return settled(outcome, end)


def end_of(outcome: run.Outcome, *, attempt: int, policy: Mapping[str, Any] | None) -> End:
    """Return how an attempt ends with this outcome."""
    match outcome:
        case run.Returned():
            return ending.completed(outcome.result)
        case run.Ignored():
            return ending.completed(None)
        case run.Stopped():
            return PutOff(wait=outcome.wait, key=outcome.key)
        case run.Failed():
            failed = ending.failed(
                outcome.error, attempt=attempt, policy=policy, wait=outcome.wait, may_retry=outcome.may_retry
            )
            return failed if outcome.changes is None else Changed(ending=failed, changes=outcome.changes)


def settled(outcome: run.Outcome, end: End) -> run.Outcome:
    """Return the outcome with the wait that was decided, so that Celery reports the same."""
    decided = end.ending if isinstance(end, Changed) else end
    if isinstance(outcome, run.Failed) and isinstance(decided, Ending):
        return run.Failed(error=outcome.error, wait=decided.wait, may_retry=decided.state not in TERMINAL)
    return outcome
