"""Actors that stop before every statement and every commit, until they are let go on."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from django.db import Error

from dispatcher import sql
from tests.races.lockstep import DEADLINE, Actor

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_HISTORY = re.compile(r'dispatcher_keychange|^SELECT "dispatcher_ratelimitkey"."name" AS')
_BOUNDED = re.compile(r"\bdispatcher_(take|claim)_[0-9a-f]+\(")
"""Calls of the functions that write. They wait for each lock for 20 ms at most, and go on without it."""
_READS = re.compile(r"\bFROM\b")
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|LOCK)\b")


class Kind(Enum):
    """What a step can do to the others, and they to it."""

    READ = auto()
    """It sees what is committed, and neither writes nor locks."""
    WRITE = auto()
    """It writes or locks, and its transaction stays open: others may wait for it, and see nothing of it."""
    COMMIT = auto()
    """It ends a transaction, or is one by itself: others see it from here on, and need wait no longer."""


@dataclass(frozen=True)
class Step:
    """One statement, by its name, or the end of a transaction."""

    name: str
    kind: Kind
    is_bounded: bool = False
    """Whether it waits for a lock for a moment only: who waits for it then, waits until it is done."""

    def concerns(self, other: "Step") -> bool:
        """Whether it makes a difference which of two neighbours goes first.

        A plain read can stand on either side of all that commits nothing.
        """
        kinds = {self.kind, other.kind}
        return Kind.COMMIT in kinds or Kind.READ not in kinds


class Abandoned(BaseException):
    """The schedule is not played to its end."""


@dataclass
class Turn:
    """The messages between the actors and the scheduler."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    is_abandoned: bool = False
    faults: list[Exception] = field(default_factory=list)
    """Every error of the database, also those that the engine lives with."""

    def begin(self) -> None:
        """Forget the last schedule."""
        self.is_abandoned = False
        self.faults.clear()


def _backend() -> int:
    return int(sql.connection().connection.info.backend_pid)


class Stepped(Actor):
    """One thread with a connection of its own; it does one piece of work, step by step."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self.next: Step | None = None
        self.last: Step | None = None
        self.doing: Future[Any] | None = None
        self.holds = False
        self.received: list[str] = []
        self.do(self._attach)
        self.pid: int = self.do(_backend)

    @property
    def is_done(self) -> bool:
        """Whether it came to the end of its work."""
        return self.doing is None or self.doing.done()

    @property
    def is_moving(self) -> bool:
        """Whether it is in a step, where it may have to wait for somebody's lock."""
        return not self.is_done and self.next is None

    @property
    def is_bounded(self) -> bool:
        """Whether the step that it is in ends by itself, whatever others have locked."""
        return self.last is not None and self.last.is_bounded

    @property
    def local(self) -> str:
        """All that its own state follows from: what it has received so far, and what it does next."""
        return f"{self.received} {self.next} {self.is_done}"

    def start(self, work: Callable[[], Any]) -> None:
        """Start on some work, and go up to its first step."""
        self.holds, self.received = False, []
        # What an abandoned transaction has left in the process.
        vars(self.wrapper).pop("dispatcher_sent", None)
        self.doing = self.begin(work)
        self.doing.add_done_callback(self._wake_scheduler)

    def go(self) -> Step:
        """Take the next step, and return which."""
        with self.turn.changed:
            self.last, self.next = self.next, None
            self.turn.changed.notify_all()
        assert self.last is not None
        return self.last

    def abandon(self) -> None:
        """Leave the work as it is; what is not committed is rolled back."""
        with self.turn.changed:
            self.turn.is_abandoned, self.next = True, None
            self.turn.changed.notify_all()

    def wait(self) -> None:
        """Wait until it has left its work."""
        with suppress(Abandoned):
            if self.doing is not None:
                self.doing.exception(DEADLINE)

    def step(self, name: str, text: str, run: Callable[[], T], cursor: Callable[[T], psycopg.Cursor[Any]]) -> T:
        """Run a statement when it is let; one that touches no table is no step.

        Neither is BEGIN: it travels with the statement that follows, and sees nothing. Nor is what is read for the
        history of keys and written into it, which no other statement sees.
        """
        if _HISTORY.search(text):
            return run()
        is_open = self.wrapper.in_atomic_block
        if (is_bounded := _BOUNDED.search(text) is not None) or _WRITES.search(text):
            self._stop(Step(name, Kind.WRITE if is_open else Kind.COMMIT, is_bounded))
            self.holds = is_open
        elif _READS.search(text):
            self._stop(Step(name, Kind.READ))
        try:
            done = run()
        except Error as fault:
            self.turn.faults.append(fault)
            raise
        self.received.append(f"{name} {_answer(cursor(done))}")
        return done

    def _attach(self) -> None:
        _here.actor = self
        self.wrapper = wrapper = sql.connection()
        wrapper.execute_wrappers.append(self._step_plain)
        for end in ("commit", "rollback"):
            vars(wrapper)[end] = partial(self._step_end, end, getattr(wrapper, end))

    def _step_plain(
        self,
        execute: Callable[..., T],
        text: str,
        params: Any,
        many: bool,
        context: Mapping[str, Any],
    ) -> T:
        run = partial(execute, text, params, many, context)
        return self.step(text[:30], text, run, lambda _: context["cursor"].cursor)

    def _step_end(self, name: str, end: Callable[[], None]) -> None:
        try:
            if name == "commit" or not self.turn.is_abandoned:
                self._stop(Step(name, Kind.COMMIT))
        except Abandoned:
            self.wrapper.connection.rollback()
            raise
        self.holds = False
        end()

    def _stop(self, step: Step) -> None:
        with self.turn.changed:
            if self.turn.is_abandoned:
                raise Abandoned
            self.next = step
            self.turn.changed.notify_all()
            assert self.turn.changed.wait_for(lambda: self.next is None, DEADLINE), (
                f"the scheduler did not release it for {step.name}"
            )
            if self.turn.is_abandoned:
                raise Abandoned

    def _wake_scheduler(self, _: object) -> None:
        with self.turn.changed:
            self.turn.changed.notify_all()


_here = threading.local()


def _answer(cursor: psycopg.Cursor[Any]) -> str:
    answer = cursor.pgresult
    if answer is None:
        return ""
    rows = [[answer.get_value(row, column) for column in range(answer.nfields)] for row in range(answer.ntuples)]
    return f"{answer.command_status} {rows}"


def _ask(ask: Callable[..., sql.Asked[Any]], name: str, row: type, params: Mapping[str, Any]) -> sql.Asked[Any]:
    actor: Stepped | None = getattr(_here, "actor", None)
    run = partial(ask, name, row, params)
    return run() if actor is None else actor.step(name, sql.statement(name).text, run, lambda asked: asked.cursor)


@contextmanager
def stepped(count: int) -> Iterator[list[Stepped]]:
    """Give so many actors, whose statements are steps, and end them."""
    turn = Turn()
    made = [Stepped(turn) for _ in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "ask", partial(_ask, sql.ask))
        try:
            yield made
        finally:
            for actor in made:
                actor.abandon()
            for actor in made:
                actor.wait()
                actor.close()
