"""Take: record how attempts ended, and start or dispatch the calls that may go; one trip.

Which calls go is decided by the function take of the database (sql/functions): the only text that starts a call.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, is_eager, process_silence
from dispatcher.ending import Ending
from dispatcher.extension import registered
from dispatcher.lifecycle import finish
from dispatcher.lifecycle.finish import Ended
from dispatcher.limits.turns import Turns
from dispatcher.messages import broker
from dispatcher.messages.message import Admitted
from dispatcher.models import CallQueue
from dispatcher.signals import call_dropped, call_finished
from dispatcher.states import State

LEAD: Final = timedelta(milliseconds=10)
"""How far ahead a throttled start lies at the least: the way of the answer to the process."""
KEEP: Final = timedelta(seconds=1)
"""For how long the room of a key is kept, once a round, for a lane whose workers are all busy."""
NOTES_COMMITTED: Final = timedelta(seconds=1)
"""How long after it was written a note is committed, or a sender writes another one (see wake_workers)."""
NOTES_LATE: Final = timedelta(minutes=1)
"""How long after it was written a note may be committed by who then dies: a trip reads those now and then, too."""
_LATE_EVERY_S: Final = 10.0
_UNBOUNDED: Final = 2**31 - 1
_NO_WORKER: Final = UUID(int=0)
"""Holds nothing, so that a limit per worker leaves room: tasks run one after the other in the sender's process."""


class Notes:
    """Which notes one worker's trips have not read: those that are younger than the trip before, and a little older.

    Older ones were written by who committed late, and died: once in ten seconds a trip reads those of the last minute,
    and the next tick reads all notes.
    """

    since: datetime | None = None
    """Since when, by the database's clock; None: all. A process may be stopped, and its trip may come late."""
    _late_at = -inf
    """When a trip last looked for those that were committed late (monotonic)."""

    def note(self, asked_at: float, taken: "Taken") -> None:
        """Count a trip, asked for at a monotonic time, that may have left some to the next one."""
        is_complete = taken.again_at is None or taken.again_at > taken.at
        took = timedelta(seconds=monotonic() - asked_at)
        committed = NOTES_COMMITTED
        if is_complete and asked_at - self._late_at > _LATE_EVERY_S:
            self._late_at, committed = asked_at, NOTES_LATE
        self.since = taken.at - took - committed if is_complete else None


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Who takes calls: a worker, the queues that it serves, and the tasks that it knows."""

    worker: UUID | None = None
    process: UUID | None = None
    """The process that takes for it, and may be marked as idle."""
    queues: Sequence[str] = ()
    tasks: Sequence[str] | None = None
    """None: any."""
    becomes: State = State.ACTIVE
    """What its calls become: active, or dispatched, to be published and claimed."""
    is_pulled: bool = False
    """Whether it fetches them over HTTP, with a lease of their own."""
    horizon: timedelta | None = None
    """How far ahead of its start it may take a throttled call; by default as the setting says."""
    takes_any: bool = False
    """Whether it takes calls of its queues whatever their delivery, as where tasks are eager."""
    lease: timedelta | None = None
    """How long a call counts as running without a heartbeat; by default as the setting says."""
    delay: timedelta = timedelta(0)
    """How long a call lately took to a process at the most, beyond what limits allow for.

    A start under a throttle lies that much further ahead, and a window remembers a start that much longer.
    """
    paced_delay: timedelta = timedelta(0)
    """How much later than its start a call under a throttle may begin: the next start is moved by as much."""
    notes: Notes | None = None
    """Which notes its trips have not read; None: all."""
    turns: Turns = field(default_factory=Turns)
    """Which queue comes next, where their weights differ; counts what trips start."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A call that was started for the worker; its ticket is also its claim."""

    call: Admitted
    start_at: datetime
    attempt: int
    retry: dict[str, Any] | None
    keys: Sequence[int]
    """The keys that it spends."""
    is_counted: bool
    """Whether a window counts it, from its start on."""
    is_paced: bool
    """Whether a throttle gave the start: it must be kept to the millisecond."""

    def ended(self, ending: Ending) -> Ended:
        """Return that its attempt ended so, for a trip to record."""
        return Ended(call_id=self.call.id, ticket=self.call.ticket, claim_id=self.call.ticket, ending=ending)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one trip did."""

    at: datetime
    """When, by the database's clock."""
    starts: Sequence[Start] = ()
    dispatched: Sequence[Admitted] = ()
    """Calls to be published."""
    fates: Sequence["Row"] = ()
    """What else became of calls: dropped, expired, cancelled, or of an unknown task."""
    ended: Collection[UUID] = ()
    """The calls whose ends were recorded; those of the others were recorded before, or their tickets replaced."""
    locked: Collection[UUID] = ()
    """The calls whose ends must be brought again, since another transaction has locked them."""
    again_at: datetime | None = None
    """When the taker should come again, unless it is woken before; None: only then."""
    publish: Sequence[str] = ()
    """Queues that the broker delivers and that have lanes ready."""
    is_full: bool = False
    """Whether calls wait for the room of a key that it has looked at, or will soon: ends are recorded at once."""

    @property
    def has_more(self) -> bool:
        """Whether more could start now than it had room for."""
        return self.again_at is not None and self.again_at <= self.at


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the function take."""

    id: UUID | None
    ticket: UUID | None
    state: str | None
    task: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    call_data: dict[str, Any] | None
    headers: dict[str, Any] | None
    options: dict[str, Any] | None
    queue: str | None
    attempt: int | None
    retry: dict[str, Any] | None
    chosen_keys: dict[str, str] | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    key_ids: list[int] | None
    is_counted: bool | None
    start_at: datetime | None
    fate: str | None
    key: str | None
    wake: list[UUID] | None
    again_at: datetime | None
    publish: list[str] | None
    ended: list[UUID] | None
    locked: list[UUID] | None
    freed: list[int] | None
    is_full: bool | None
    at: datetime
    turn: int | None
    """In which order calls start."""


def take(
    taker: Taker,
    ends: Sequence[Ended] = (),
    *,
    room: int = 0,
    publish: int = 0,
    keys: Collection[int] = (),
    is_marked: bool = False,
    may_rest: bool = False,
    begin: Callable[[Taken], object] = lambda taken: taken,
    report: Callable[[Callable[[], object]], object] = sql.after_commit,
) -> Taken:
    """Record how attempts ended, and start up to `room` calls of the taker's queues.

    publish: how many calls of queues that the broker delivers may be dispatched too, where it is their turn.
    keys: keys to be looked at. is_marked: whether the process may be marked as idle. may_rest: mark it, if nothing
    starts. begin: is given what was taken before processes are notified that may go on. report: is given what calls
    the receivers of ends and drops, which may be slow.
    """
    # What reaches no worker is left to processes that do.
    publishes = broker.reaches_workers()
    params = {
        **_params_of(taker),
        "room": room if taker.queues and (publishes or taker.becomes is State.ACTIVE) else 0,
        "publish": publish if publishes else 0,
        "is_marked": is_marked,
        "may_rest": may_rest,
        "keys": list(keys),
        **finish.params_of(ends),
    }
    asked_at = monotonic()
    rows = sql.fetch("take", Row, params)
    last = rows.pop()
    started = sorted((row for row in rows if row.turn is not None), key=attrgetter("turn"))
    taker.turns.note(row.queue or "" for row in started if row.state == State.ACTIVE)
    taken = Taken(
        at=last.at,
        starts=[_start(row) for row in started if row.state == State.ACTIVE],
        dispatched=[_admitted(row) for row in started if row.state == State.DISPATCHED],
        fates=[row for row in rows if row.fate is not None],
        ended=last.ended or (),
        locked=last.locked or (),
        again_at=last.again_at,
        publish=(publishes and last.publish) or (),
        is_full=bool(last.is_full),
    )
    if taker.notes is not None:
        taker.notes.note(asked_at, taken)
    begin(taken)
    if last.wake:
        sql.after_commit(partial(sql.fetch, "notify_workers", str, {"workers": last.wake}))
    _report(taken, rows, ends, report)
    return taken


def _params_of(taker: Taker) -> dict[str, Any]:
    """Return what the function take is given of who takes."""
    shares = taker.turns.shares()
    turns = [shares[queue] for queue in taker.queues] if shares else None
    return {
        "worker": taker.worker or (_NO_WORKER if is_eager() else None),
        "queues": sql.array(tuple(taker.queues)),
        "tasks": None if taker.tasks is None else sql.array(tuple(taker.tasks)),
        "becomes": taker.becomes.value,
        "process": taker.process,
        "is_pulled": taker.is_pulled,
        # The function adds a stride for the next start, too.
        "due": None if turns is None else [share.due - share.stride for share in turns],
        "strides": None if turns is None else [share.stride for share in turns],
        # A fetch names the order of its queues; where calls are dispatched, Celery's consumer chooses.
        "is_strict": taker.is_pulled or (taker.becomes == State.ACTIVE and conf().queue_order == "strict"),
        "tuning": tuning(taker),
    }


def lead(taker: Taker, *, eager: bool) -> timedelta:
    """Return how far ahead a throttled start lies at the least."""
    # Who fetches a call starts it when the answer comes, which waits for that; a claim gives the start of another.
    return timedelta(0) if eager or taker.is_pulled or taker.becomes != State.ACTIVE else LEAD + taker.delay


def tuning(taker: Taker) -> str:
    """Return what the functions take and claim are given of the settings, in the order of functions/tuning.sql."""
    settings, eager = conf(), is_eager()
    ahead = lead(taker, eager=eager)
    given = {
        "horizon": ahead + (settings.horizon if taker.horizon is None else taker.horizon),
        "lead": ahead,
        "slack": taker.delay,
        "paced_slack": taker.paced_delay,
        "margin": settings.margin,
        "ramp": settings.ramp,
        "later": settings.reschedule_after,
        "keep": KEEP,
        "silence": process_silence(),
        "notes": None if taker.notes is None else taker.notes.since,
        "lease": taker.lease or settings.run_lease,
        "dispatch_lease": settings.dispatch_lease,
        "ahead": _UNBOUNDED if eager else settings.dispatch_ahead,
        "needs_worker": settings.queue_grace is not None and not eager,
        "any_delivery": eager or taker.takes_any,
        "keeps_events": registered().keeps_events(),
    }
    return sql.record(given.values())


def _start(row: Row) -> Start:
    assert row.start_at is not None and row.attempt is not None  # noqa: S101, PT018
    return Start(
        call=_admitted(row, attempt=row.attempt - 1),
        start_at=row.start_at,
        attempt=row.attempt,
        retry=row.retry,
        keys=row.key_ids or (),
        is_paced=row.start_at > row.at,
        is_counted=bool(row.is_counted),
    )


def _admitted(row: Row, **changes: Any) -> Admitted:
    return Admitted(**{each.name: getattr(row, each.name) for each in fields(Admitted)} | changes)


def _report(
    taken: Taken, rows: Sequence[Row], ends: Sequence[Ended], report: Callable[[Callable[[], object]], object]
) -> None:
    """Report the ends that were recorded, and the calls that were dropped at a limit, to the receivers of signals."""
    if call_finished.has_listeners(CallQueue):
        for each in ends:
            if each.call_id in taken.ended:
                facts = {"call_id": each.call_id, "state": each.ending.state, "error": each.ending.error}
                report(partial(call_finished.send_robust, sender=CallQueue, **facts))
    if call_dropped.has_listeners(CallQueue):
        for row in rows:
            if row.fate == "dropped":
                report(partial(call_dropped.send_robust, sender=CallQueue, call_id=row.id, key=row.key))
