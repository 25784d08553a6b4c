"""Celery's remote commands reach calls that loops run: `inspect active`, `revoke` with `terminate`, and `terminate`."""

import inspect
import logging
import signal as signals
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from time import monotonic, time
from typing import Any
from uuid import UUID

from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.control import Panel, nok

from dispatcher.celery import revoke
from dispatcher.worker.keeper import keeper_of

logger = logging.getLogger(__name__)

_TERM = "SIGTERM"


def listen() -> None:
    """Let this worker's commands reach the calls of its loops."""
    for name, reaching in (("active", _listing), ("revoke", _ending), ("terminate", _ending)):
        command = Panel.data[name]
        if not hasattr(command, "reaches_loops"):
            Panel.data[name] = reaching(command)
            Panel.data[name].reaches_loops = True
    Panel.data["dump_active"] = Panel.data["active"]
    revoke.after_revoke[:] = [_end_started]


def _listing(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def active(state: Any, *args: Any, **kwargs: Any) -> Any:
        keeper = keeper_of(state.consumer.controller)
        ours = [] if keeper is None else keeper.running()
        began = time() - monotonic()
        return [
            *command(state, *args, **kwargs),
            *(
                {
                    "id": str(running.call),
                    "name": running.task,
                    "args": [],
                    "kwargs": {},
                    "type": running.task,
                    "hostname": state.hostname,
                    "time_start": began + running.began,
                    "acknowledged": True,
                    "delivery_info": {"exchange": "", "routing_key": "", "priority": None, "redelivered": False},
                    "worker_pid": pid,
                }
                for running, pid in ours
            ),
        ]

    return active


class _Request:
    """Stands for a call of a loop where Celery's command looks for requests; the keeper ends it."""

    def __init__(self, call: str) -> None:
        """Be known by the call's id."""
        self.id = call

    def terminate(self, *_: Any, **__: Any) -> None:
        """Leave it to the keeper."""


@contextmanager
def _shown(calls: Iterable[str]) -> Iterator[None]:
    """Show calls to Celery as active requests: the result of one that it does not know would be "revoked" from now."""
    shown = {call: _Request(call) for call in calls}
    worker_state.requests.update(shown)
    worker_state.active_requests.update(shown.values())
    try:
        yield
    finally:
        for call, request in shown.items():
            worker_state.active_requests.discard(request)
            worker_state.requests.pop(call, None)


def _ending(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)

    @wraps(command)
    def ending(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        keeper = keeper_of(given["state"].consumer.controller)
        with _shown([] if keeper is None else [str(call) for call, _ in keeper.held()]):
            answer = command(*args, **kwargs)
        if keeper is not None and (number := _signal_of(given)):
            for call in maybe_list(given["task_id"]) or []:
                with suppress(ValueError):
                    if (refusal := keeper.terminate(UUID(str(call)), number)) is not None:
                        logger.warning(refusal)
                        answer = nok(refusal)
        return answer

    return ending


def _signal_of(given: Mapping[str, Any]) -> int:
    """Return the signal by which a command terminates what runs; 0 if it does not. given: its arguments."""
    if not given.get("terminate", True):
        return 0
    return int(getattr(signals, str(given.get("signal") or _TERM), signals.SIGTERM))


def _end_started(calls: Iterable[UUID], given: Mapping[str, Any]) -> None:
    """End what has started between the command and the time at which the rows said that it was revoked."""
    keeper = keeper_of(given["state"].consumer.controller)
    if keeper is not None and (number := _signal_of(given)):
        for call in calls:
            keeper.terminate_started(call, number)
