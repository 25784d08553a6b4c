"""Traps in the trial's processes, for moments that are too short to be hit from outside.

The trial arms one for a process by name; who next comes to that point gets the signal, with its whole group.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from dispatcher.lifecycle import claim, publish, run
from trials.chaos import notes

P = ParamSpec("P")
R = TypeVar("R")

PUBLISHING = "publishing"
"""Between the commit of an admission and its publication."""
RUNNING = "running"
"""Between the claim and the first line of the task."""


def install() -> None:
    """Set the traps in this process, if it is one of the trial's."""
    if "CHAOS_NAME" in os.environ:
        publish.publish = _trapped(PUBLISHING, publish.publish)
        run.run = _trapped(RUNNING, run.run)
        claim.is_in_time_at = _noted(claim.is_in_time_at)


def path(home: Path, name: str, point: str) -> Path:
    """Return the file by which the trap of a process is armed; it holds the number of the signal."""
    return home / f"{name}.{point}"


def arm(trap: Path, how: signal.Signals) -> None:
    """Arm a trap, whole from the first moment."""
    draft = trap.with_suffix(".draft")
    draft.write_text(str(how.value))
    draft.rename(trap)


def disarm(trap: Path) -> bool:
    """Take a trap away; return whether nobody had stepped into it."""
    try:
        trap.unlink()
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


def _trapped(point: str, step: Callable[P, R]) -> Callable[P, R]:
    trap = path(notes.home(), os.environ["CHAOS_NAME"], point)

    @wraps(step)
    def walk(*args: P.args, **kwargs: P.kwargs) -> R:
        # A pass that admitted nothing publishes an empty list.
        if trap.exists() and args[0]:
            _spring(trap)
        return step(*args, **kwargs)

    return walk


def _spring(trap: Path) -> None:
    with suppress(FileNotFoundError):
        how = int(trap.read_text())
        trap.unlink()
        os.killpg(os.getpgrp(), how)
