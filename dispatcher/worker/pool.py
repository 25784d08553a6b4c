"""The pool of a worker as the keeper uses it: it submits loops, and replaces processes that have died."""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from billiard.exceptions import TimeLimitExceeded
from django.db import connections

from dispatcher.worker import loop
from dispatcher.worker.loop import Loop, Options
from dispatcher.worker.shared import Place, Running, WakePipe

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.fence

logger = logging.getLogger(__name__)

_CLEAN_UP_S: Final = 0.1
"""How long a task may clean up after its hard time limit, as in Celery's pool."""
_UNLIMITED_S: Final = 1e9
"""The time limit of the loops themselves."""


@dataclass(eq=False)
class Seat:
    """A loop that was submitted to the pool."""

    place: Place
    submitted_at: float
    pid: int = 0
    ran_at: float = 0.0
    """When a call was seen to run, or the worker's shutdown began."""
    warned: UUID | None = None
    """The ticket of the call whose soft time limit was signalled."""
    timed: UUID | None = None
    """The ticket of the call whose hard time limit has ended the process."""
    kill_at: float = 0.0
    """When it has had its time to clean up."""
    reason: tuple[UUID, BaseException] | None = None
    """The ticket of the call for which the main process ends the process, and why."""

    def limit(self, running: Running, now: float) -> None:
        """Warn the process of the call's soft time limit, and end it at the hard one."""
        name = f"{running.task}[{running.call}]"
        if now > running.hard and self.timed != running.ticket:
            limit = running.hard - running.began
            self.timed, self.kill_at = running.ticket, now + _CLEAN_UP_S
            self.reason = running.ticket, TimeLimitExceeded(limit)
            logger.error("Hard time limit (%ss) exceeded for %s", f"{limit:g}", name)
            self.end(signal.SIGTERM)
        elif now > running.hard and now > self.kill_at:
            self.end(signal.SIGKILL)
        elif now > running.soft and self.warned != running.ticket:
            self.warned = running.ticket
            logger.warning("Soft time limit (%ss) exceeded for %s", f"{running.soft - running.began:g}", name)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def end(self, number: int) -> None:
        """End the process of the loop, which runs a call, by a signal; others than these two it may outlive."""
        if number in {signal.SIGTERM, signal.SIGKILL}:
            self.place.condemn()
        # 0 would be this process with all others of its group.
        if pid := self.place.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Pool:
    """The pool of a consumer. `over` is called in any thread when the job of a loop has ended."""

    def __init__(self, options: Options, over: Callable[[Seat], object]) -> None:
        """Submit nothing yet."""
        self.options, self._over = options, over
        self._to_submit: list[Seat] = []
        self._wakes = WakePipe()
        self.is_closing = False

    def attach(self, consumer: "Consumer") -> None:
        """Use the pool of this consumer."""
        self.consumer = consumer
        hub: Any = getattr(consumer, "hub", None)
        if hub is not None:
            hub.add_reader(self._wakes.descriptor, self._on_wake)
        self._has_hub = hub is not None and self.options.is_forked
        if self.is_solo and not isinstance(consumer.pool.on_apply, partial):
            Loop.one_by_one = Loop.one_by_one or Lock()
            consumer.pool.on_apply = partial(self._one_by_one, consumer.pool.on_apply)

    @property
    def size(self) -> int:
        """How many processes, threads or greenlets it has."""
        pool = self.consumer.pool
        if self.options.is_forked:
            return int(pool.num_processes or 1)
        return int(getattr(pool, "limit", None) or self.consumer.controller.concurrency or 1)

    @property
    def is_solo(self) -> bool:
        """Whether it runs tasks in the consumer's own thread."""
        return self.kind == "solo"

    @property
    def kind(self) -> str:
        """Its kind, such as `prefork`."""
        return str(self.consumer.pool.__module__).rsplit(".", 1)[-1]

    def let_shrink(self, is_running: Callable[[int], bool | None]) -> None:
        """Let it end processes whose loops run no call: to Celery each process with a loop is busy.

        One that it is ending by now is none of them: the pool would count it again, and keep none in the end.
        is_running: whether the loop of a process runs a call; None if it has none.
        """
        pool = self.consumer.pool._pool  # noqa: SLF001 -- Celery has no other place for it
        is_active = pool._worker_active  # noqa: SLF001

        def is_busy(process: Any) -> bool:
            runs = process._controlled_termination or is_running(process.pid)  # noqa: SLF001
            return is_active(process) if runs is None else runs

        pool._worker_active = is_busy  # noqa: SLF001

    def end_again(self, pid: int) -> None:
        """End a process that the pool has ended while it started: before its loop runs, the signal may be lost."""
        for process in [*self.consumer.pool._pool._pool]:  # noqa: SLF001 -- as above
            if process.pid == pid and process._controlled_termination:  # noqa: SLF001
                process.terminate()

    def submit(self, *seats: Seat) -> None:
        """Have loops submitted; where the pool has an event loop, in its thread, which first replaces ended processes.

        By itself it looks for these every 5 s. Not by call_soon: what is to come in the hub's next turn is lost with a
        connection that breaks in this one.
        """
        self._to_submit.extend(seats)
        if self._has_hub:
            self._wakes.wake()
        else:
            self._submit()

    def _on_wake(self) -> None:
        self._wakes.clear()
        if self._has_hub:
            if not self.is_closing:
                self.consumer.pool.maintain_pool()
            self._submit()

    def _submit(self) -> None:
        limits = {"soft_timeout": _UNLIMITED_S, "timeout": _UNLIMITED_S} if self.options.is_forked else {"timeout": 0}
        while self._to_submit:
            seat = self._to_submit.pop()
            if self.is_solo:
                Thread(target=self._run_alone, args=(seat,), name="dispatcher-loop", daemon=True).start()
                continue

            def over(*_: Any, seat: Seat = seat, **__: Any) -> None:
                self._over(seat)

            self.consumer.pool.apply_async(
                loop.main,
                (seat.place.index, self.options),
                callback=over,
                error_callback=over,
                correlation_id=None,
                **limits,
            )

    def _run_alone(self, seat: Seat) -> None:
        """Run a loop beside the consumer of a pool that runs tasks in the consumer's own thread, one at a time."""
        self.consumer.app.set_current()
        try:
            loop.main(seat.place.index, self.options)
        finally:
            connections.close_all()
            self._over(seat)

    def _one_by_one(self, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a task of the broker's while no loop runs one, and wake the event loop.

        Its acknowledgement is left to the event loop's next turn, which may begin seconds later: the task may have run
        just before this one waits for events. Until then RabbitMQ sends no other message, with a prefetch of 1.
        """
        with Loop.one_by_one:
            done = apply(*args, **kwargs)
        self._wakes.wake()
        return done
