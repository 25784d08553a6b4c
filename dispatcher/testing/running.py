"""Calls that run in the test's own process, one after the other, as a loop of a worker runs them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from celery import current_app
from celery.app.trace import build_tracer

from dispatcher import sql, validate
from dispatcher.engine import compose, direct, sent
from dispatcher.errors import CallInvalid
from dispatcher.lifecycle import control, oversized, publish, schedule
from dispatcher.lifecycle.send import Draft
from dispatcher.lifecycle.take import Start, Taker
from dispatcher.messages import broker
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import DUE, TERMINAL, Delivery, State
from dispatcher.testing import chords
from dispatcher.testing.sends import replaced
from dispatcher.worker import call
from dispatcher.worker.call import Run
from dispatcher.worker.ends import Ends

_HERE: Final = UUID(int=0)
"""A worker that holds nothing, so that a limit per worker leaves room."""
_NO_LIMITS: Final[dict[str, Any]] = {
    "concurrency": None,
    "per_worker": None,
    "rate_limit": None,
    "rate_period": None,
    "throttle_limit": None,
    "throttle_period": None,
    "is_paused": False,
    "blocked_until": None,
    "override_until": None,
}
_FRUITLESS: Final = 3
"""After how many trips in a row that changed nothing there is nothing left."""
_STEP: Final = timedelta(milliseconds=25)
"""How far the clock goes on where something is due that changes nothing."""

_write = sent.write


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """Stop the clock of calls at a moment: what is due, what limits allow and what is written goes by it.

    It is the clock of this process's threads and of no other's. Task code that asks for the time has its own. Raises
    CallInvalid for a time without a zone.
    """
    checked = validate.moment("moment", moment)
    if checked is None:
        raise CallInvalid("moment", "required: give a time with a zone.")
    before, sql.Clock.at = sql.Clock.at, checked
    try:
        yield
    finally:
        sql.Clock.at = before


def drain(*, until: datetime | None = None, with_scheduled: bool = False, with_limits: bool = False) -> Counter[str]:
    """Run the calls that wait, and those that these send, until none is left that may go; return how many by state.

    Counted are calls that have ended, and those whose attempt has failed (`retryable`); what a task raises stays in
    its call. HTTP workers' queues are left to them.
    until: let the clock of calls go on to this time, from one moment at which something falls due to the next.
    with_scheduled: run calls whatever time they wait for, and make all attempts. with_limits: as far as limits, pauses
    and blocks allow; otherwise they count from the moment on at which a task changes them.
    """
    until = validate.moment("until", until)
    before = _attempts()
    with _player(with_limits=with_limits) as player, at(sql.now()) if until else nullcontext():
        while player.play(with_scheduled=with_scheduled) or _go_on(until):
            pass
    after = _attempts()
    ended = (state for call, (state, attempt) in after.items() if before.get(call) != (state, attempt))
    return Counter(state for state in ended if state in {*TERMINAL, State.RETRYABLE})


@contextmanager
def inline(*, limits: bool = False) -> Iterator[None]:
    """Run each call inside when it is sent, also within a transaction, and raise there what its task raises.

    Whatever waits already runs with it. So does a task that is sent by `.delay()`, as with `task_always_eager`.
    limits: only as far as limits, pauses, blocks and times allow; what they hold back waits: see `drain`.
    """
    write, conf = sent.write, current_app.conf

    def write_and_run(drafts: Sequence[Draft]) -> list[CallQueue]:
        with _player(with_limits=limits) as player:
            calls = player.send(write, drafts)
            while player.play(with_scheduled=not limits):
                pass
        for each in calls:
            each.refresh_from_db()
        ids = {each.id for each in calls}
        for run in player.runs:
            if run.error is not None and run.start.call.id in ids:
                raise run.error
        return calls

    eager = {"task_always_eager": True, "task_eager_propagates": True}
    before = {name: conf[name] for name in eager}
    with replaced(write_and_run):
        conf.update(eager)
        try:
            yield
        finally:
            conf.update(before)


def perform(
    task: object,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    attempt: int = 1,
    keys: Any = None,
) -> CallQueue:
    """Run one attempt of a new call, without limits, and return the call as it is after it.

    Its `state`, `result` and `error` show what came of it; nothing is raised, and nothing else runs. attempt: which one
    it is, from 1. Raises CallInvalid as `send` does.
    """
    number = validate.whole("attempt", attempt, 1, 2**31 - 1)
    # In a queue of its own, or another call might go first.
    queue = f"perform-{uuid4()}"
    drafts = compose.drafts([Call(task=task, args=args, kwargs=kwargs, keys=keys, queue=queue)])
    with _player(with_limits=False) as player:
        (call,) = player.send(_write, drafts)
        CallQueue.objects.filter(id=call.id).update(attempt=number - 1)
        player.step([queue])
    call.refresh_from_db()
    return call


class _Player:
    """What a worker's process does, in the test's: it takes calls, runs them and records their ends."""

    def __init__(self, *, with_limits: bool) -> None:
        self.runs: list[Run] = []
        self._with_limits = with_limits
        self._limits: dict[int, dict[str, Any]] = {}
        """What the keys had, by their ids."""
        self._asked: set[tuple[UUID, int]] = set()
        """The calls, and their attempts, that were asked to run before their time: each once."""
        self._looked: set[UUID] = set()
        """Chords that have looked for their members since another call ran: these may be messages, and never end."""

    def send(self, write: Callable[[Sequence[Draft]], list[CallQueue]], drafts: Sequence[Draft]) -> list[CallQueue]:
        """Write calls, and do what follows a commit."""
        with _followed(), sql.atomic():
            return write(drafts)

    def play(self, *, with_scheduled: bool) -> bool:
        """Run what may go; return whether anything did."""
        has_run = False
        fruitless = 0
        while fruitless < _FRUITLESS:
            with _followed():
                schedule.wake_due()
                schedule.discard_expired()
                oversized.release()
                # After what need not be asked: it would go before that, attempt by attempt.
                if with_scheduled and fruitless:
                    self._run_now()
            is_useful = self.step(_queues())
            has_run = has_run or is_useful
            fruitless = 0 if is_useful else fruitless + 1
        return has_run

    def step(self, queues: Sequence[str]) -> bool:
        """Take a call of these queues and run it; return whether that changed anything."""
        with _followed():
            sent.serve(
                unplaced=list(CallQueue.objects.filter(lane=None, finished_at=None).values_list("id", flat=True))
            )
            keys = [] if self._with_limits else self._lift()
            taken = direct.step(Taker(worker=_HERE, queues=queues, takes_any=True), room=1, keys=keys)
        for start in taken.starts:
            with _followed():
                self._run(start)
        if any(start.call.task != chords.UNLOCK for start in taken.starts):
            self._looked.clear()
        return bool(taken.starts or taken.fates)

    def _run_now(self) -> None:
        """Let calls run before their time, and what waits for their ends after them."""
        due = CallQueue.objects.filter(state__in=DUE).order_by("scheduled_at", "position")
        new = [call for call in due.only("id", "attempt", "task") if (call.id, call.attempt) not in self._asked]
        asked = [call for call in new if call.task != chords.UNLOCK]
        if not asked:
            asked = [call for call in new if call.id not in self._looked]
            self._looked.update(call.id for call in asked)
        self._asked.update((call.id, call.attempt) for call in asked)
        control.run_now([call.id for call in asked])

    def _run(self, start: Start) -> None:
        app, name = current_app._get_current_object(), start.call.task  # noqa: SLF001 -- Celery's name for the app
        # No provider counts these starts: one that comes late is no reason to wait for another.
        run = Run(start=start, slack=timedelta(hours=1))
        try:
            if name not in app.tasks:
                app.loader.import_default_modules()
            publish.fence(name)
            tracer = build_tracer(name, app.tasks[name], app=app, eager=True, propagate=False)
            with chords.closing(app, name):
                run.end = call.execute(app, run, "testing", None, tracer=tracer)
        except BaseException:
            direct.give_back([run.handle])
            raise
        self.runs.append(run)
        ends = Ends()
        ends.add(run)
        direct.step(Taker(worker=_HERE), [each.ended for each in ends.take()], room=0)

    def _lift(self) -> list[int]:
        """Take the limits of all keys away, of each when it is first seen; return those that had some."""
        new = {key["id"]: key for key in RateLimitKey.objects.exclude(id__in=self._limits).values("id", *_NO_LIMITS)}
        limited = [id_ for id_, key in new.items() if key | _NO_LIMITS != key]
        RateLimitKey.objects.filter(id__in=limited).update(**_NO_LIMITS)
        self._limits |= new
        return limited

    def restore(self) -> None:
        """Give the keys their limits back, where no task has changed them."""
        for key in RateLimitKey.objects.filter(id__in=self._limits).values("id", *_NO_LIMITS):
            had = self._limits[key["id"]]
            lifted = {name: had[name] for name, value in _NO_LIMITS.items() if key[name] == value != had[name]}
            if lifted:
                RateLimitKey.objects.filter(id=key["id"]).update(**lifted)


@contextmanager
def _player(*, with_limits: bool) -> Iterator[_Player]:
    player = _Player(with_limits=with_limits)
    with broker.kept_to_itself():
        try:
            yield player
        finally:
            player.restore()


@contextmanager
def _followed() -> Iterator[None]:
    """Do what is to follow the commit of what is done inside, also within a transaction that is not committed."""
    connection = sql.connection()
    first = len(connection.run_on_commit)
    yield
    while hooks := connection.run_on_commit[first:]:
        del connection.run_on_commit[first:]
        for _, hook, *_ in hooks:
            hook()


def _queues() -> list[str]:
    """Return the queues that Celery workers serve."""
    fetched = Queue.objects.filter(delivery=Delivery.HTTP).values("name")
    return [*Lane.objects.exclude(queue__in=fetched).order_by("queue").values_list("queue", flat=True).distinct()]


def _attempts() -> dict[UUID, tuple[str, int]]:
    return {call: (state, attempt) for call, state, attempt in CallQueue.objects.values_list("id", "state", "attempt")}


def _go_on(until: datetime | None) -> bool:
    """Set the clock to when something falls due next; return False if that is after this time."""
    wait = None if until is None else schedule.ask_due(now=sql.now()).row().wait
    if until is None or wait is None or (moment := sql.now() + max(wait, _STEP)) > until:
        return False
    sql.Clock.at = moment
    return True
