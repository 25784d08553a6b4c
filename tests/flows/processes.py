"""The processes of the flows: they are started and stopped, and their notes are read."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from django.db import connection

from dispatcher import sql
from dispatcher.models import CallQueue
from dispatcher.states import TERMINAL
from project.processes import Stack
from tests.flows.sample_tasks import app
from tests.flows.settings import DISPENSER_QUEUE, QUEUE

APP = "tests.flows.sample_tasks"


class Processes:
    """Starts and stops the processes of the flows, and reads their notes."""

    def __init__(self, stack: Stack, notes: Path) -> None:
        self.stack = stack
        self.notes = notes

    def start_worker(self, name: str = "worker", *options: str, env: Mapping[str, str] | None = None) -> None:
        """Start a worker of this run's queue, and do not wait for it."""
        self._start_worker(name, QUEUE, *options, env=env)

    def kill_workers(self) -> None:
        """Kill the workers that are up."""
        for name in {"worker", "second", "third"}.intersection(self.stack.children):
            self.stack.kill(name)

    def start_dispenser(self, name: str = "dispenser", *, env: Mapping[str, str] | None = None) -> None:
        """Start a worker that runs the dispatcher's own tasks, and do not wait for it."""
        self._start_worker(name, DISPENSER_QUEUE, "-P", "threads", "-c", "4", env=env)

    def start_beat(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Start beat with the schedule in the database, and do not wait for it."""
        self.stack.start_beat("beat", *options, app=APP, env=env)

    def _start_worker(self, name: str, queue: str, *options: str, env: Mapping[str, str] | None) -> None:
        quiet = ("--without-mingle", "--without-gossip")
        self.stack.start_worker(name, *quiet, *options, app=APP, node=f"{name}-{QUEUE}", queues=[queue], env=env)

    def noted(self, call: object, what: str = "run") -> int:
        """Return how often this happened to a message: its task ran ("run"), or it was dealt with ("end")."""
        return len(self._times(call, what))

    def last_noted(self, call: object, what: str) -> datetime:
        """Return when this happened to a message for the last time."""
        return datetime.fromtimestamp(max(self._times(call, what)), UTC)

    def most_at_once(self, calls: Collection[object]) -> dict[str | None, int]:
        """Return how many of these calls ran at the same time at the most, in each worker and, by None, in all."""
        ids = set(map(str, calls))
        noted = sorted(
            (line["at"], line["what"] == "run", line["worker"])
            for line in self._lines()
            if line["id"] in ids and line["what"] in {"run", "end"}
        )
        now, most = Counter[str | None](), Counter[str | None]()
        for _, is_start, worker in noted:
            for each in (worker, None):
                now[each] += 1 if is_start else -1
                most[each] = max(most[each], now[each])
        return dict(most)

    def lines_of(self, call: object) -> list[dict[str, Any]]:
        """Return what was noted of a message."""
        return [line for line in self._lines() if line["id"] == str(call)]

    def _times(self, call: object, what: str) -> list[float]:
        return [line["at"] for line in self.lines_of(call) if line["what"] == what]

    def _lines(self) -> list[dict[str, Any]]:
        text = self.notes.read_text() if self.notes.exists() else ""
        # Without what is being written.
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


class every:  # noqa: N801 -- it reads as a preposition
    """Do something again and again, so many seconds apart, in a thread with a connection of its own."""

    def __init__(self, seconds: float, what: Callable[[], Any]) -> None:
        self.seconds, self.what = seconds, what
        self.over = Event()
        self.thread = Thread(target=self._go_on)
        self.errors: list[Exception] = []

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        assert not self.errors, self.errors

    def _go_on(self) -> None:
        app.set_current()
        due = time.monotonic()
        try:
            while not self.over.wait(max(0.0, due - time.monotonic())):
                try:
                    self.what()
                except sql.DATABASE_ERRORS as fault:
                    # One that has waited too long for a lock goes on with its next run, as a periodic task does.
                    if not sql.is_locked(fault):
                        raise
                due += self.seconds
        except Exception as error:  # noqa: BLE001 -- raised by the test's own thread
            self.errors.append(error)
        finally:
            connection.close()


def all_ended() -> bool:
    """Return whether no call is left that waits or runs."""
    return not CallQueue.objects.exclude(state__in=TERMINAL).exists()
