"""Fetch: workers in any language fetch calls; each fetch is a trip of `take`, with a lease of the worker's own.

A fetched call is fenced by its ticket (see worker_reports).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from random import SystemRandom
from time import monotonic, sleep
from typing import Final

from django.db.models import Q

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import dispenser
from dispatcher.lifecycle import schedule, take
from dispatcher.lifecycle.take import Start, Taken, Taker
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs import jobs, pull_workers
from dispatcher.ojs.jobs import job_of
from dispatcher.ojs.long_poll import WAITERS, Fetchable

_LOOKS_S: Final = (0.02, 1.0)
"""How soon a fetch that waits looks, though it was not woken: at first for what was sent while it was marked as idle,
then for calls of its own worker that have ended."""
_SOON: Final = timedelta(milliseconds=20)
"""A trip that should come again so soon is made again at once: others have locked what is ready."""
_TRIPS: Final = 20
"""How many trips one fetch makes at the most before it answers, or waits."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """A request for calls: of which queues, how many at most, and how long it may wait.

    lease: how long a call counts as running without a heartbeat; None: the call's own, or the setting's.
    """

    queues: Sequence[str]
    worker: str | None = None
    count: int = 1
    lease: timedelta | None = None
    wait: timedelta = timedelta(0)
    who: Hashable = None
    """The credentials: of waiting requests with the same ones, `is_allowed` is called once."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the credentials still allow the fetch; called before each further read, and by the polling thread."""


def fetch(request: FetchRequest) -> list[CallQueue]:
    """Start calls for a worker and return them: queue by queue in the given order, without those that a limit stops.

    A worker with the directive `quiet` gets none, and a queue that Celery serves gives none.
    """
    if request.worker is not None and pull_workers.touch_worker(request.worker, queues=request.queues) != "running":
        return []
    until = monotonic() + request.wait.total_seconds()
    tried, is_woken, look_s = _start(request, until), False, _LOOKS_S[0]
    while not tried.starts and (is_woken or monotonic() < until) and request.is_allowed():
        # Marked as idle before it looks once more: what is sent, or opens, after that wakes it.
        with WAITERS.waiting(request.who, request.queues, request.is_allowed) as waiter:
            tried = _start(request, until)
            if not tried.starts:
                opens_s = [each for each in (tried.again_s, waiter.opens_s) if each is not None]
                waiter.wait(min(until - monotonic(), look_s, *opens_s))
        is_woken, look_s = waiter.is_woken, _LOOKS_S[1]
    return _answer(request, tried.starts)


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What the trips of a fetch have started, and in how many seconds another may find something."""

    starts: list[Start]
    again_s: float | None = None
    starts_in_s: float = 0
    """When the last of them starts."""


def _start(request: FetchRequest, until: float) -> _Tried:
    """Start calls, after those whose time has come wait in their lanes.

    A fetch that may wait takes a call under a throttle a little ahead of its start, and its answer waits for that: if
    it came at that time, each start would be late by the way here, and so would be all that follow. Such a call is
    alone in its answer, or those behind it would start too early.
    """
    served = sql.fetch("fetchable_queues", Fetchable, {"queues": list(request.queues)})
    if due := [queue.name for queue in served if queue.has_due]:
        schedule.wake_due(due)
    taker = Taker(
        worker=None if request.worker is None else pull_workers.worker_id(request.worker),
        queues=[queue.name for queue in served],
        is_pulled=True,
        horizon=timedelta(0),
        lease=request.lease or conf().visibility,
    )
    ahead = min(conf().horizon, timedelta(seconds=max(0.0, until - monotonic())))
    if not ahead:
        return _take(taker, request.count)
    began = monotonic()
    tried = _take(replace(taker, horizon=ahead), 1)
    if request.count > 1 and tried.starts and not _is_spaced(tried.starts[0]):
        return replace(tried, starts=_take(taker, request.count, tried.starts).starts)
    sleep(max(0.0, tried.starts_in_s - (monotonic() - began)))
    return tried


def _take(taker: Taker, count: int, before: Sequence[Start] = ()) -> _Tried:
    """Make trips until so many have started, or there is nothing left that could start now, or no room in the answer.

    before: those that have started.
    """
    tried = _Tried(starts=[*before])
    for left in reversed(range(_TRIPS)):
        try:
            taken, room = _trip(taker, count - len(tried.starts), tried.starts)
        except sql.DATABASE_ERRORS as fault:
            # What has started is answered: no other fetch gets it before its lease ends.
            if tried.starts and sql.is_unavailable(fault):
                break
            if not sql.is_locked(fault) or not left:
                raise
            sleep(_SOON.total_seconds())
            continue
        dispenser.serve(taken)
        again = None if taken.again_at is None else taken.again_at - taken.at
        tried = _Tried(
            starts=[*tried.starts, *taken.starts],
            again_s=None if again is None else again.total_seconds(),
            starts_in_s=max(((each.start_at - taken.at).total_seconds() for each in taken.starts), default=0),
        )
        if len(taken.starts) >= room or again is None or again > _SOON:
            break
        sleep(max(0.0, again.total_seconds()))
    return tried


def _trip(taker: Taker, room: int, before: Sequence[Start]) -> tuple[Taken, int]:
    """Make a trip that starts no more than an answer has room for beside these; return it, and for how many that was.

    How large calls are is known when they have started. If they are too many, the trip never was.
    """
    while room and (before or room > 1):
        with sql.own_transaction():
            taken = take.take(taker, room=room, publish=dispenser.PUBLISH)
            started = [*before, *taken.starts]
            fitting = jobs.fitting([each.call.id for each in started])
            if fitting == len(started):
                return taken, room
            sql.connection().set_rollback(True)
        room = fitting - len(before)
    return take.take(taker, room=room, publish=dispenser.PUBLISH), room


def _is_spaced(start: Start) -> bool:
    """Return whether a key of this call has a throttle."""
    keys = RateLimitKey.objects.filter(id__in=start.keys)
    return keys.filter(Q(throttle_limit__isnull=False) | Q(override_throttle_limit__isnull=False)).exists()


def _answer(request: FetchRequest, starts: Sequence[Start]) -> list[CallQueue]:
    """Return the calls, with their jobs; a lease or a time of a job's own counts before the worker gets it."""
    calls = jobs.read([each.call.id for each in starts])
    own = {call.id for call in calls if (job := job_of(call)).timeout or (job.visibility and not request.lease)}
    if own:
        params = {
            "calls": list(own),
            "tickets": [each.call.ticket for each in starts if each.call.id in own],
            "lease": request.lease,
            "usual": conf().visibility,
        }
        sql.change("set_fetch_leases", params)
    return calls


_chance = SystemRandom()


def ordered(queues: Sequence[str], strategy: str, weights: Mapping[str, float]) -> list[str]:
    """Return the queues in the order of a strategy; over many fetches, each is first in proportion to its weight."""
    if strategy == "weighted":
        # The minimum of exponential variables, each with its weight as rate, is chosen in proportion to the weights.
        return sorted(queues, key=lambda queue: _chance.expovariate(max(weights.get(queue, 1.0), 1e-6)))
    if strategy in ("round-robin", "least-loaded"):
        first = _chance.randrange(len(queues)) if queues else 0
        return [*queues[first:], *queues[:first]]
    return list(queues)
