"""The pool of a feed: how many of the worker's processes are free, and how a call reaches one as a Celery request."""

import os
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from celery.worker import state
from kombu.message import Message
from kombu.serialization import dumps

from dispatcher.celery import fed
from dispatcher.celery.feed_runs import Run
from dispatcher.messages.message import parts

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.unknown

_READ: Final = 4096
_EACH: Final = 2
"""How many calls the pool has for each process: the one that runs, and the next, so that no process waits for it."""


class FedMessage(Message):
    """The message of a call that a feed has started; it never was at a broker."""

    dispatcher_run: Run
    contents: Any
    """The body, which Celery reads once more in this process."""

    @property
    def payload(self) -> Any:
        """Return the body without decoding it."""
        return self.contents


def message_of(app: Any, run: Run) -> FedMessage:
    """Return the message that Celery makes a request of."""
    headers, properties, body = parts(app, run.start.call)
    headers[fed.FED] = fed.header(run.start, run.slack)
    content_type, encoding, payload = dumps(body, "json")
    properties = {
        **properties,
        "delivery_info": {"exchange": "", "routing_key": run.start.call.queue},
        "delivery_tag": str(run.start.call.ticket),
    }
    message = FedMessage(  # type: ignore[no-untyped-call]
        body=payload,
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        properties=properties,
        delivery_info=properties["delivery_info"],
        delivery_tag=properties["delivery_tag"],
        accept={"json", "application/json"},
    )
    message.dispatcher_run, message.contents = run, body
    return message


def _settled(*_: Any, **__: Any) -> None:
    """Acknowledge, or reject: no broker waits for it."""


class Pool:
    """The pool of a worker, as its feed sees it."""

    def __init__(self, consumer: "Consumer") -> None:
        """Hand calls over through the worker's event loop where it has one, else directly."""
        self.consumer = consumer
        self._waiting: deque[Run] = deque()
        """On their way to the event loop."""
        self._ready: deque[Run] = deque()
        """Started ahead: they wait for a process."""
        self._given: set[Run] = set()
        """Those that a process has, or gets next."""
        self._hub: Any = getattr(consumer, "hub", None)
        self._is_woken = False
        """Whether the event loop will look at those on their way: one wake-up is enough for several."""
        if self._hub is not None:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
            self._hub.add_reader(self._read, self._hand_over)

    def add_reader(self) -> None:
        """Have the event loop read again: it forgets its readers when the connection to the broker breaks."""
        if self._hub is not None:
            self._hub.add_reader(self._read, self._hand_over)

    @property
    def size(self) -> int:
        """How many calls the pool runs at once, with the next process of one that scales by itself."""
        worker = self.consumer.controller
        size = int(getattr(self.consumer.pool, "num_processes", None) or worker.concurrency or 1)
        scaler = worker.autoscaler
        # A call that finds no process has the pool grow, as a message that Celery fetches ahead does.
        return size + 1 if scaler is not None and size < scaler.max_concurrency else size

    def busy_elsewhere(self) -> int:
        """Return how many of its processes run tasks that came through the broker."""
        with suppress(RuntimeError):
            return sum(1 for request in list(state.active_requests) if getattr(request, "fed", None) is None)
        return 0

    def give(self, run: Run) -> None:
        """Give a call to the pool: to a free process, as the next one of a process, or later."""
        run.given_at = monotonic()
        if self._has_place():
            self._hand(run)
        else:
            self._ready.append(run)

    def free(self, run: Run) -> None:
        """Give the place of a call that has ended to the next one, in any thread."""
        if run not in self._given:
            return
        self._given.discard(run)
        with suppress(IndexError):
            while self._has_place():
                if (following := self._ready.popleft()).ended_at is None:
                    self._hand(following)

    def _has_place(self) -> bool:
        """Whether a process is free, or has no next call."""
        return len(self._given) < _EACH * self.size - self.busy_elsewhere()

    def take_back(self, before: float) -> list[Run]:
        """Return, and forget, the calls that have waited for a process since before this monotonic time."""
        taken: list[Run] = []
        with suppress(IndexError):
            while self._ready[0].given_at < before:
                taken.append(self._ready.popleft())
        return taken

    @property
    def oldest_at(self) -> float | None:
        """Since when the first call waits for a process."""
        with suppress(IndexError):
            return self._ready[0].given_at
        return None

    def _hand(self, run: Run) -> None:
        self._given.add(run)
        if self._hub is None:
            self._execute(run)
            return
        self._waiting.append(run)
        if self._is_woken:
            return
        self._is_woken = True
        # Not call_soon: what is to come in the loop's next turn is lost with a connection that breaks in this one.
        with suppress(BlockingIOError):
            os.write(self._write, b"x")

    def _hand_over(self, *_: Any) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, _READ)
        # First: what another thread appends from now on wakes the loop again.
        self._is_woken = False
        while self._waiting:
            try:
                run = self._waiting.popleft()
            except IndexError:
                return
            self._execute(run)

    def _execute(self, run: Run) -> None:
        try:
            message = message_of(self.consumer.app, run)
            noticed = self.consumer.on_task_message
            self.consumer.strategies[run.start.call.task](message, None, _settled, _settled, noticed)
        except Exception as error:  # noqa: BLE001 -- a message that can't be made, or read, ends its attempt
            run.report(run.failed(error))
