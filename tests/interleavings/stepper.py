"""Play actors against each other in every order of their steps: depth first, every schedule from the same tables.

A schedule says whose turn it is, step by step. Two things are not played twice. Of two neighbours that do not concern
each other, the step of the first actor goes first (what is left is the smallest of the schedules that differ in
nothing else). And what comes after a state that was there before: when no transaction holds anything, and no actor
waits for a lock, all that follows depends on what is committed, on what each actor has received, and on who may go
next.
INTERLEAVINGS=wide plays larger casts, too.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from django.db import connection

from tests.interleavings.gate import Step, Stepped, stepped
from tests.interleavings.state import Tables, kept
from tests.races.audit import audit
from tests.races.lockstep import DEADLINE

logger = logging.getLogger(__name__)

IS_WIDE = os.environ.get("INTERLEAVINGS") == "wide"
wide = pytest.mark.skipif(not IS_WIDE, reason="takes minutes; INTERLEAVINGS=wide plays it")
"""Marks the larger casts."""
_MOST = 20_000 if IS_WIDE else 600
_POLL = 0.002
_TRIES = 10


@dataclass(frozen=True)
class Taken:
    """One step of a schedule: whose it was, which, and who could have gone in its place."""

    actor: int
    step: Step
    choice: Sequence[int]


class Astray(Exception):
    """The schedule could not be played again: another one waits now than did then."""


@dataclass
class Explored:
    """What was played: nothing, and a test has shown nothing."""

    schedules: int = 0
    """To the end."""
    cut_short: int = 0
    """Up to a state that was there before, or where only the order of what makes no difference was left."""
    astray: int = 0
    """Not to be played: of two who wait for one row, PostgreSQL always let the other go first."""
    steps: int = 0
    results: list[tuple[Any, ...]] = field(default_factory=list, repr=False)
    """What the actors returned, once for each way in which it all can end."""


class Execution:
    """Actors with their work, and who may go next."""

    def __init__(
        self, actors: Sequence[Stepped], work: Sequence[Callable[[], Any]], tables: Tables, *, plays_all: bool
    ) -> None:
        self.actors = actors
        self.work = work
        self.tables = tables
        self.plays_all = plays_all
        self.turn = actors[0].turn
        self.known: set[str] = set()
        self.taken: list[Taken] = []

    def play(self, schedule: Sequence[int]) -> bool:
        """Play a schedule, and from its end on always who comes first; return whether it came to the end.

        Raises Astray.
        """
        self.taken = []
        self.turn.begin()
        for actor, work in zip(self.actors, self.work, strict=True):
            actor.start(work)
        self._settle()
        while not all(actor.is_done for actor in self.actors):
            choice = self._choice()
            place = len(self.taken)
            if place < len(schedule) and schedule[place] not in choice:
                self._abandon()
                raise Astray(schedule)
            if not choice or (place >= len(schedule) and self._is_known(choice)):
                self._abandon()
                return False
            number = schedule[place] if place < len(schedule) else choice[0]
            self.taken.append(Taken(number, self.actors[number].go(), choice))
            self._settle()
        return not self._is_known([])

    def results(self) -> tuple[Any, ...]:
        """Return what the actors returned. Raises what one of them raised."""
        return tuple(actor.doing.result() for actor in self.actors if actor.doing)

    def trace(self) -> list[str]:
        """Return the steps so far."""
        return [f"{taken.actor} {taken.step.name}" for taken in self.taken]

    def _choice(self) -> list[int]:
        """Say who may go next: those who stand before a step, but not before one that belongs before the last."""
        ready = [(number, actor.next) for number, actor in enumerate(self.actors) if actor.next is not None]
        if not self.taken or self.plays_all:
            return [number for number, _ in ready]
        last = self.taken[-1]
        return [number for number, step in ready if number >= last.actor or step.concerns(last.step)]

    def _is_known(self, choice: Sequence[int]) -> bool:
        """Whether all that follows from here was played before."""
        if self.plays_all or any(actor.holds or actor.is_moving for actor in self.actors):
            return False
        state = self.tables.seen(f"{choice} {[actor.local for actor in self.actors]}")
        is_known = state in self.known
        self.known.add(state)
        return is_known

    def _settle(self) -> None:
        """Wait until everybody stands before a step, is done, or waits for the lock of one who does."""
        deadline = time.monotonic() + DEADLINE
        while True:
            with self.turn.changed:
                self.turn.changed.wait_for(lambda: not self._moving(), _POLL)
            moving = self._moving()
            if any(actor.is_bounded for actor in moving):
                continue
            if not moving or (any(actor.next for actor in self.actors) and self._are_blocked(moving)):
                return
            assert time.monotonic() < deadline, f"no actor can go on after {self.trace()}"

    def _moving(self) -> list[Stepped]:
        return [actor for actor in self.actors if actor.is_moving]

    def _are_blocked(self, moving: Sequence[Stepped]) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT bool_and(pg_blocking_pids(pid) && %s::int[]) FROM unnest(%s::int[]) AS moving (pid)",
                [[actor.pid for actor in self.actors], [actor.pid for actor in moving]],
            )
            (are_blocked,) = cursor.fetchone()
        return bool(are_blocked)

    def _abandon(self) -> None:
        for actor in self.actors:
            actor.abandon()
        for actor in self.actors:
            actor.wait()


def explore(
    work: Mapping[str, Callable[[], Any]],
    check: Callable[..., None],
    *,
    at_least: int,
    limits_changed: bool = False,
    schedule: str | None = None,
    plays_all: bool = False,
) -> Explored:
    """Play every schedule; let `check`, and the audit, judge what the actors returned and left behind.

    at_least: how many steps must have been taken, so that a machine that plays nothing shows nothing.
    limits_changed: see audit. schedule: play this one alone; so does SCHEDULE in the environment.
    """
    alone = [int(number) for number in schedule or os.environ.get("SCHEDULE", "")]
    found = Explored()
    with stepped(len(work)) as actors, kept() as tables:
        execution = Execution(actors, list(work.values()), tables, plays_all=plays_all or bool(alone))
        branch: list[Taken] | None = []
        while branch is not None:
            try:
                is_whole = _play(execution, alone or [taken.actor for taken in branch])
                _judge(execution, found, check, is_whole=is_whole, limits_changed=limits_changed)
                branch = None if alone else _next(execution.taken)
            except Astray:
                found.astray += 1
                branch = None if alone else _next(branch)
            except Exception as fault:
                raise AssertionError(_report(execution, list(work), found, fault)) from fault
    logger.info("%s", found)
    assert alone or found.steps >= at_least, f"only {found.steps} steps were taken"
    return found


def _play(execution: Execution, schedule: Sequence[int]) -> bool:
    for _ in range(_TRIES):
        execution.tables.put_back()
        with suppress(Astray):
            return execution.play(schedule)
    raise Astray(schedule)


def _judge(
    execution: Execution, found: Explored, check: Callable[..., None], *, is_whole: bool, limits_changed: bool
) -> None:
    found.steps += len(execution.taken)
    assert not execution.turn.faults, f"the database said {execution.turn.faults}"
    assert found.schedules + found.cut_short < _MOST, "too much for one test"
    if not is_whole:
        found.cut_short += 1
        return
    found.schedules += 1
    results = execution.results()
    found.results.append(results)
    check(*results)
    audit(has_ended=False, limits_changed=limits_changed)


def _next(taken: Sequence[Taken]) -> list[Taken] | None:
    """Return the beginning of the next schedule: the last choice that has another answer, answered by it."""
    for place in reversed(range(len(taken))):
        later = [number for number in taken[place].choice if number > taken[place].actor]
        if later:
            return [*taken[:place], replace(taken[place], actor=later[0])]
    return None


def _report(execution: Execution, names: Sequence[str], found: Explored, fault: Exception) -> str:
    schedule = "".join(str(each.actor) for each in execution.taken)
    steps = "\n".join(f"  {names[each.actor]}: {each.step.name}" for each in execution.taken)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    return (
        f"{type(fault).__name__}: {fault}\nin schedule {found.schedules + found.cut_short}:\n{steps}\n"
        f"Play it alone with SCHEDULE={schedule} pytest '{test}'"
    )
