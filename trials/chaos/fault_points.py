"""Traps in the trial's processes, for moments that are too short to be hit from outside.

The trial arms one for a process by name; who next comes to that point gets the signal, alone or with its whole group.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from dispatcher.engine import direct, sent
from dispatcher.lifecycle import claim, publish, run
from dispatcher.worker import session
from trials import notes

P = ParamSpec("P")
R = TypeVar("R")

NOTIFIED = "notified"
"""Between the notification of an idle process and its trip."""
WAKING = "waking"
"""Between the commit of a transaction that has sent and the notification of an idle process."""
PUBLISHING = "publishing"
"""Between the commit of a trip that has dispatched calls and their publication."""
RUNNING = "running"
"""Between the claim and the first line of the task."""
ENDED = "ended"
"""Between the last line of a task and the trip of its process that records the end."""


def install() -> None:
    """Set the fault points in this process, if it is one of the trial's."""
    if "CHAOS_NAME" in os.environ:
        session.Session.take_woken = _trapped_after(NOTIFIED, session.Session.take_woken)  # type: ignore[method-assign]
        sent.serve = _trapped(WAKING, sent.serve)
        publish.publish = _trapped(PUBLISHING, publish.publish)
        run.run = _trapped(RUNNING, run.run)
        direct.step = _trapped(ENDED, direct.step, needs=1)
        claim.is_in_time_at = _noted(claim.is_in_time_at)


def path(run_dir: Path, name: str, point: str) -> Path:
    """Return the file by which the fault_point of a process is armed: the signal, and whether for one alone."""
    return run_dir / f"{name}.{point}"


def arm(fault_point: Path, how: signal.Signals, *, alone: bool = False) -> None:
    """Arm a fault_point, whole from the first moment. alone: for the process that comes to it, and not its group."""
    draft = fault_point.with_suffix(".draft")
    draft.write_text(f"{how.value} {int(alone)}")
    draft.rename(fault_point)


def disarm(fault_point: Path) -> bool:
    """Take a fault_point away; return whether no process had reached it."""
    try:
        fault_point.unlink()
    except FileNotFoundError:
        return False
    return True


def since_start(now: int) -> timedelta:
    """Return how long before `now` the start of the task that runs was due, in nanoseconds of the monotonic clock."""
    return timedelta(seconds=now / 1_000_000_000 - _Start.due)


class _Start:
    due = 0.0


def _noted(is_in_time: Callable[..., bool]) -> Callable[..., bool]:
    """Note the start that a claim was given, which a busy machine may miss by more than a strict provider forgives."""

    def wait(due: float, lateness: float) -> bool:
        _Start.due = due
        return is_in_time(due, lateness)

    return wait


def _trapped(point: str, step: Callable[P, R], *, needs: int = 0) -> Callable[P, R]:
    """Set a fault point before a step. needs: the argument without which it does nothing of the kind."""
    fault_point = path(notes.directory(), os.environ["CHAOS_NAME"], point)

    @wraps(step)
    def walk(*args: P.args, **kwargs: P.kwargs) -> R:
        # A trip that has dispatched nothing publishes an empty list; a loop that was idle brings no ends.
        if fault_point.exists() and args[needs:] and args[needs]:
            _spring(fault_point)
        return step(*args, **kwargs)

    return walk


def _trapped_after(point: str, step: Callable[P, bool]) -> Callable[P, bool]:
    """Set a fault point behind a step that returns True."""
    fault_point = path(notes.directory(), os.environ["CHAOS_NAME"], point)

    @wraps(step)
    def walk(*args: P.args, **kwargs: P.kwargs) -> bool:
        if (found := step(*args, **kwargs)) and fault_point.exists():
            _spring(fault_point)
        return found

    return walk


def _spring(fault_point: Path) -> None:
    with suppress(FileNotFoundError):
        how, alone = map(int, fault_point.read_text().split())
        fault_point.unlink()
        if alone:
            os.kill(os.getpid(), how)
        else:
            os.killpg(os.getpgrp(), how)
