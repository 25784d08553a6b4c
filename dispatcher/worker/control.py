"""Celery's remote commands reach calls: `inspect active` those of loops, `revoke` and `terminate` those that wait, too.

Every worker gets a command.
"""

import inspect
import logging
import signal as signals
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from time import monotonic, time
from typing import Any
from uuid import UUID

from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.control import Panel, nok

from dispatcher.celery import heartbeat, revoke
from dispatcher.messages.tickets import uuid_of
from dispatcher.worker.keeper import Keeper, keeper_of

logger = logging.getLogger(__name__)

_TERM = "SIGTERM"


def listen() -> None:
    """Let this worker's commands reach the calls that wait, and those of its loops."""
    for name, reaching in (("active", _listing), ("revoke", _ending), ("terminate", _ending)):
        command = Panel.data[name]
        if not hasattr(command, "reaches_calls"):
            Panel.data[name] = reaching(command)
            Panel.data[name].reaches_calls = True
    Panel.data["dump_active"] = Panel.data["active"]


class _Request:
    """Stands for a call of a loop where Celery's commands look for requests; the keeper ends it."""

    def __init__(self, call: object, **facts: Any) -> None:
        """Be known by the call's id. facts: what `inspect active` shows of it."""
        self.id, self._facts = str(call), facts

    def info(self, **_: Any) -> Mapping[str, Any]:
        """Return what Celery shows of a request."""
        return {"id": self.id, **self._facts}

    def terminate(self, *_: Any, **__: Any) -> None:
        """Leave it to the keeper."""


@contextmanager
def _shown(requests: Iterable[_Request]) -> Iterator[None]:
    """Show calls to Celery as active requests: the result of one that it does not know would be "revoked" from now."""
    shown = {request.id: request for request in requests}
    worker_state.requests.update(shown)
    worker_state.active_requests.update(shown.values())
    try:
        yield
    finally:
        for call, request in shown.items():
            worker_state.active_requests.discard(request)
            worker_state.requests.pop(call, None)


def _listing(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def active(state: Any, *args: Any, **kwargs: Any) -> Any:
        keeper, began = keeper_of(state.consumer.controller), time() - monotonic()
        requests = (
            _Request(
                running.call,
                name=running.task,
                args=[],
                kwargs={},
                type=running.task,
                hostname=state.hostname,
                time_start=began + running.began,
                acknowledged=True,
                delivery_info={"exchange": "", "routing_key": "", "priority": None, "redelivered": False},
                worker_pid=pid,
            )
            for running, pid in (() if keeper is None else keeper.running())
        )
        with _shown(requests):
            return command(state, *args, **kwargs)

    return active


def _ending(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)

    @wraps(command)
    def ending(state: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(state, *args, **kwargs)
        bound.apply_defaults()
        given, number = bound.arguments, _signal_of(bound.arguments)
        calls = [call for each in maybe_list(given["task_id"]) or [] if (call := uuid_of(str(each))) is not None]
        keeper: Keeper | None = keeper_of(state.consumer.controller)
        with _shown(_Request(call) for call, _ in (() if keeper is None else keeper.held())):
            answer = command(state, *args, **kwargs)
        if calls:
            heartbeat.in_background("cancel calls that were revoked", partial(_revoke, calls, keeper, number))
        if keeper is not None and number:
            for refusal in filter(None, [keeper.terminate(call, number) for call in calls]):
                logger.warning(refusal)
                answer = nok(refusal)
        return answer

    return ending


def _signal_of(given: Mapping[str, Any]) -> int:
    """Return the signal by which a command terminates what runs; 0 if it does not. given: its arguments."""
    if not given.get("terminate", True):
        return 0
    return int(getattr(signals, str(given.get("signal") or _TERM), signals.SIGTERM))


def _revoke(calls: Sequence[UUID], keeper: Keeper | None, number: int) -> None:
    """Revoke calls, and end what has started between the command and the time at which the rows say so."""
    revoke.revoke(calls)
    if keeper is not None and number:
        for call in calls:
            keeper.terminate_started(call, number)
