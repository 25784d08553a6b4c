"""Chords of calls in a test: results go to no backend, so their rows say what the members returned."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from celery import Celery, states
from celery.backends.base import BaseBackend
from celery.exceptions import TaskRevokedError

from dispatcher import validate
from dispatcher.messages.tickets import uuid_of
from dispatcher.models import CallQueue
from dispatcher.states import State

UNLOCK: Final = "celery.chord_unlock"
"""Celery's task that looks whether the members of a chord have ended, again and again, and then sends its body."""


class _Rows(BaseBackend):  # type: ignore[misc]  # Celery has no types.
    """A result backend that reads the rows of calls, and stores nothing."""

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        call_id = uuid_of(task_id)
        call = None if call_id is None else CallQueue.objects.filter(id=call_id).first()
        if call is None or call.finished_at is None:
            return {"status": states.PENDING, "result": None}
        if call.state == State.COMPLETED:
            return {"status": states.SUCCESS, "result": validate.from_json(call.result)}
        if call.error is None:
            return {"status": states.REVOKED, "result": TaskRevokedError(call.reason or call.state)}
        error = self.exception_to_python({"exc_type": call.error["type"], "exc_message": call.error["message"]})
        return {"status": states.FAILURE, "result": error}

    def _store_result(self, *_: Any, **__: Any) -> None:
        """Leave it to the row."""


@contextmanager
def closing(app: Celery, task: str) -> Iterator[None]:
    """Let the task that closes a chord ask the rows of its members; leave any other task alone."""
    if task != UNLOCK:
        yield
        return
    rows = _Rows(app)
    with patch.object(type(app), "backend", property(lambda _: rows)):
        yield
