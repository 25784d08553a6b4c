"""The Celery side: the task base class that claims before it runs, and what a worker does beside its tasks.

Use it as `Celery("project", task_cls="dispatcher.celery:DispatchedTask")`. A task that is sent without the
dispatcher (`.delay()`) runs as always.
"""

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_never
from uuid import UUID

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery, Task, signals
from celery.app.task import Context
from celery.exceptions import Ignore, MaxRetriesExceededError, Retry
from celery.worker.request import Request
from django.db import close_old_connections

from dispatcher import engine, presence
from dispatcher.errors import TicketReplaced, UnknownTask
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.publish import TICKET_HEADER
from dispatcher.lifecycle.run import Failed, Ignored, RetryAsked, Returned, Stopped
from dispatcher.presence import DATABASE_ERRORS, KeptConnections, Presence

logger = logging.getLogger(__name__)


class DispatchedRequest(Request):
    """A message in the worker: what ends without its task's word ends the attempt at once."""

    @property
    def ticket(self) -> UUID | None:
        """The ticket that the message carries; None for a task that came without the dispatcher."""
        return _uuid(self.request_dict.get(TICKET_HEADER))

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 -- Celery's signature
        """End the attempt when the hard time limit has killed its process."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._lose(TimeLimitExceeded(timeout))

    def on_failure(self, exc_info: ExceptionInfo, *args: Any, **kwargs: Any) -> None:
        """End the attempt when its process was lost or terminated."""
        super().on_failure(exc_info, *args, **kwargs)
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError | Terminated | SystemExit):
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        if self.ticket is None:
            return
        close_old_connections()
        try:
            engine.lose(UUID(self.id), self.ticket, error, is_crash=isinstance(error, WorkerLostError))
        except DATABASE_ERRORS:
            logger.exception("call %s keeps its slots until its lease runs out", self.id)


class DispatchedTask(Task):
    """A task that, when it was dispatched, claims its call before it runs and finishes it after."""

    Request = DispatchedRequest

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Give the app's workers their presence and their connections."""
        app.steps["worker"].update((KeptConnections, Presence))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run: fenced by the ticket if the message carries one, plainly otherwise."""
        ticket = self._ticket
        if self.request.called_directly or self.request.get("is_running"):
            # From code, or by itself from within its own attempt.
            return super().__call__(*args, **kwargs)
        if ticket is None:
            return self.run(*args, **kwargs)
        self.request.update(is_running=True)
        run = partial(self.run, *args, **kwargs)
        outcome = engine.execute(UUID(self.request.id), ticket, run, worker=presence.worker_id())
        match outcome:
            case Returned():
                return outcome.result
            case Ignored():
                raise outcome.error
            case Failed(may_retry=True) | Stopped():
                # Celery's own class: it travels from the pool's process to the worker's, whatever the cause.
                seconds = outcome.wait.total_seconds() if outcome.wait is not None else 0
                raise Retry(exc=outcome.error, when=seconds) from outcome.error
            case Failed(error=Retry() as error):
                # Celery would take it for one that is still to come.
                raise MaxRetriesExceededError(str(error)) from error
            case Failed():
                raise outcome.error
            case None | Refused():
                raise Ignore
            case _:
                assert_never(outcome)

    def retry(  # noqa: PLR0917 -- Celery's signature
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,  # noqa: FBT001, FBT002 -- Celery's signature
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> RetryAsked:
        """Try again later: a dispatched call waits in the queue, counted, and with its arguments as they are."""
        if self._ticket is None or self.request.called_directly:
            again: RetryAsked = super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
            return again
        most = self.max_retries if max_retries is None else max_retries
        wait = timedelta(seconds=self.default_retry_delay if countdown is None else countdown)
        if eta is not None:
            wait = eta - (datetime.now(UTC) if eta.tzinfo else datetime.now())  # noqa: DTZ005 -- Celery allows naive
        may_retry = most is None or self.request.retries < most
        cause = exc or (None if may_retry else MaxRetriesExceededError(f"{self.name} was tried {most + 1} times"))
        asked = RetryAsked(cause, wait, may_retry=may_retry)
        if throw or not may_retry:
            raise asked
        return asked

    def ensure_held(self) -> None:
        """Raise TicketReplaced if this attempt has lost its call to another one, and so must not act any more.

        For a task that may have been stopped for long (by a frozen machine, say) before it does what can't be undone.
        """
        if self._ticket is not None and not engine.is_held(UUID(self.request.id), self._ticket):
            raise TicketReplaced(self.request.id)

    @property
    def _ticket(self) -> UUID | None:
        headers = self.request.headers or {}
        return _uuid(headers.get(TICKET_HEADER) or self.request.get(TICKET_HEADER))


@signals.task_revoked.connect
def cancel_revoked(request: Context, **_: Any) -> None:
    """Cancel the call of a message that was revoked before it started; one that runs is ended by its request."""
    if _uuid(request.get(TICKET_HEADER)) is None:
        return
    close_old_connections()
    try:
        engine.cancel([UUID(request.id)])
    except DATABASE_ERRORS:
        logger.exception("call %s was revoked, and comes again when its lease has run out", request.id)


@signals.task_prerun.connect
@signals.task_postrun.connect
def keep_connections(task: Task, **_: Any) -> None:
    """Close connections when CONN_MAX_AGE says so (see KeptConnections)."""
    if not task.request.is_eager:
        close_old_connections()


@signals.task_unknown.connect
def fail_unknown(message: Any, name: str, id: str, **_: Any) -> None:  # noqa: A002 -- Celery's signature
    """Count an attempt of a call whose task this worker does not know, where Celery drops the message."""
    ticket = _uuid(message.headers.get(TICKET_HEADER))
    if ticket is not None:
        engine.fail(UUID(id), ticket, UnknownTask(name))


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
