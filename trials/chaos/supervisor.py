"""The processes of the trial, and who starts again what died, as systemd would."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, RLock, Thread

from project.processes import Child, Stack, logged
from trials.chaos.plan import BEATS, DISPENSERS, SENDERS, SERVES, WORKERS

CHILDREN = 6
"""Pool processes of a worker: together more than the limits let run at once."""
RESTART_AFTER = 1.0
LOOK_EVERY = 0.1


@dataclass(kw_only=True)
class Supervisor:
    """Who is on: every process by its name."""

    stack: Stack
    run: str
    has_messages: bool
    """Whether dispensers and beats have something to do."""
    restarts: dict[str, int] = field(default_factory=dict)
    """How often each was started again."""

    def __post_init__(self) -> None:
        """Start no process yet."""
        self._starts: dict[str, Callable[[str], Child]] = {
            **dict.fromkeys(WORKERS, self._start_worker),
            **dict.fromkeys(DISPENSERS if self.has_messages else (), self._start_dispenser),
            **dict.fromkeys(BEATS if self.has_messages else (), self._start_beat),
            **dict.fromkeys(SENDERS, self._start_sender),
        }
        self._on: set[str] = set()
        self._lock = RLock()
        self._over = Event()
        self._watch = Thread(target=self._go_on_watching, name="supervisor", daemon=True)

    def open(self) -> None:
        """Start all but the senders, wait until they are ready, then the senders; from then on they are watched."""
        for name in self._starts.keys() - SENDERS:
            self._starts[name](name)
        self.stack.wait_ready(timeout=120.0)
        for name in SENDERS:
            self._starts[name](name)
        self.stack.wait_ready()
        self._on |= set(self._starts)
        self._watch.start()

    def child(self, name: str) -> Child:
        """Return the process that has this name now; it may have ended."""
        with self._lock:
            return self.stack.children[name]

    def stop_senders(self) -> None:
        """Let the senders end what they are at, and go."""
        with self._lock:
            self._on -= set(SENDERS)
        for name in SENDERS:
            self.stack.stop(name)

    def close(self) -> None:
        """Stop watching, and end every process; a frozen one is killed."""
        self._over.set()
        if self._watch.ident is not None:
            self._watch.join()
        for name in list(self.stack.children):
            self.stack.kill(name)

    def _go_on_watching(self) -> None:
        ended_at: dict[str, float] = {}
        while not self._over.wait(LOOK_EVERY):
            with self._lock:
                for name in sorted(self._on):
                    if self.stack.children[name].is_running():
                        continue
                    since = ended_at.setdefault(name, time.monotonic())
                    if time.monotonic() - since >= RESTART_AFTER:
                        del ended_at[name]
                        # Its pool may have outlived it.
                        self.stack.kill(name)
                        self._starts[name](name)
                        self.restarts[name] = self.restarts.get(name, 0) + 1

    def _start_worker(self, name: str) -> Child:
        return self._start_celery(name, SERVES[name], CHILDREN)

    def _start_dispenser(self, name: str) -> Child:
        return self._start_celery(name, ["dispenser"], 2, "-P", "threads")

    def _start_celery(self, name: str, queues: Sequence[str], concurrency: int, *options: str) -> Child:
        return self.stack.start_worker(
            name, "--without-mingle", "--without-gossip", *options, node=f"{name}-{self.run}",
            queues=[f"{self.run}-{queue}" for queue in queues], concurrency=concurrency, env={"CHAOS_NAME": name}
        )  # fmt: skip

    def _start_beat(self, name: str) -> Child:
        return self.stack.start_beat(name, env={"CHAOS_NAME": name})

    def _start_sender(self, name: str) -> Child:
        command = [sys.executable, "-m", "trials.chaos.producer"]
        return self.stack.start(name, command, ready=logged(r"^sending$"), env={"CHAOS_NAME": name})
