"""Celery's events of the calls that loops run, for monitors such as Flower: sent by the worker's main process.

A loop writes each as a line into a pipe that was made before the pool forked, while somebody listens; a thread reads
and sends them. A line that finds the pipe full is dropped, as Celery drops what a monitor is too slow for.
"""

import json
import logging
import os
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from celery import Task
from celery.app.trace import TraceInfo
from celery.events import EventDispatcher
from celery.utils.saferepr import saferepr

logger = logging.getLogger(__name__)

_MOST: Final = 4_096
"""Bytes of a line at the most: so much is written whole (PIPE_BUF)."""
_LONGEST: Final = 700
"""Characters of a text in an event at the most."""
_READ: Final = 65_536


def are_wanted(dispatcher: EventDispatcher | None) -> bool:
    """Return whether a worker sends events of tasks: with -E, or when a monitor has asked; else only its own."""
    return bool(dispatcher is not None and dispatcher.enabled and "task" in (dispatcher.groups or {"task"}))


class EventPipe:
    """The way of events from the loops to the main process."""

    def __init__(self) -> None:
        """Make it, before the pool forks."""
        self.read, self._write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self._write, False)
        self._rest = b""
        self._is_over = False

    def send(self, kind: str, task: Task, request: dict[str, Any], **fields: Any) -> None:
        """Write an event of a call, if its task sends events."""
        if not task.send_events:
            return
        texts = {name: text[:_LONGEST] if isinstance(text, str) else text for name, text in fields.items()}
        line = json.dumps({"kind": kind, "uuid": request["id"], **texts}).encode() + b"\n"
        if len(line) <= _MOST:
            with suppress(BlockingIOError):
                os.write(self._write, line)

    def received(self, task: Task, request: dict[str, Any]) -> None:
        """Write that a call was taken, and that it starts."""
        names = ("argsrepr", "kwargsrepr", "root_id", "parent_id", "retries", "eta", "expires")
        args, kwargs, *others = (request.get(name) for name in names)
        more = dict(zip(names[2:], others, strict=True))
        self.send("task-received", task, request, name=task.name, args=args, kwargs=kwargs, **more)
        self.send("task-started", task, request)

    def ended(self, task: Task, request: dict[str, Any], info: TraceInfo | None, result: Any, runtime: float) -> None:
        """Write how the tracer has ended."""
        if info is None:
            self.send("task-succeeded", task, request, result=saferepr(result), runtime=runtime)
        elif info.state in {"RETRY", "FAILURE", "REJECTED"}:
            is_retry = info.state == "RETRY"
            error = info.retval.exc if is_retry else info.retval
            kind = "task-retried" if is_retry else "task-failed"
            self.send(kind, task, request, exception=saferepr(error), traceback=str(getattr(result, "traceback", "")))

    def end(self) -> None:
        """Let the thread end that sends the events."""
        with suppress(BlockingIOError):
            os.write(self._write, b"\n")

    def pass_on(self, dispatcher: Callable[[], EventDispatcher | None]) -> None:
        """Send the events that come, until the end: in a thread, which waits where the broker does not answer."""
        poll = select.poll()
        poll.register(self.read, select.POLLIN)
        while not self._is_over:
            poll.poll()
            for event in self._lines():
                try:
                    if (by := dispatcher()) is not None:
                        by.send(event.pop("kind"), **event)
                except Exception:
                    logger.exception("an event of a call was not sent")

    def _lines(self) -> Iterator[dict[str, Any]]:
        with suppress(BlockingIOError):
            while part := os.read(self.read, _READ):
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
            else:
                self._is_over = True
