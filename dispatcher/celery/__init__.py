"""The Celery side: the base class of tasks and of their requests, and what a worker does beside its tasks.

A task that is sent without the dispatcher (`.delay()`) runs as always.
"""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import current_thread, main_thread
from typing import Any, Final, assert_never
from uuid import UUID, uuid4

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Signature, Task, signals
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, ImproperlyConfigured, MaxRetriesExceededError, Reject, Retry
from celery.utils.serialization import raise_with_context
from celery.worker.request import Request
from celery.worker.state import task_ready
from django.db import close_old_connections
from kombu.exceptions import EncodeError

from dispatcher import api, engine
from dispatcher.celery import failures, heartbeat, replacement, retries, revoke
from dispatcher.conf import is_eager
from dispatcher.ending import InFlight
from dispatcher.errors import CallInvalid, FieldInvalid, TaskExited, TicketReplaced
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.run import Failed, Ignored, Outcome, ProcessEnds, RetryAsked, Returned, Stopped, Unstored
from dispatcher.messages.tickets import TIMES_HEADER, headers_of, ticket_in, uuid_of

logger = logging.getLogger(__name__)

_CLAIM, _WORKER = "dispatcher_claim", "dispatcher_worker"
"""What the worker adds to a message on its way to the pool: the id of its claim, and who claims."""
RUN: Final = "dispatcher_run"
"""Under what name the request of a task has its run, if a loop runs it: see dispatcher.worker.call.Run."""


class DispatchedRequest(Request):
    """A message in the worker: what ends without its task's word ends the attempt at once.

    Each delivery has a claim of its own, whose id travels to the process of the pool: the loss of that process ends
    this claim's attempt, and not the attempt that a duplicate of the message is running.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Give the claim its id, and name the worker, for the process that will run the task."""
        super().__init__(*args, **kwargs)
        if self.ticket is not None:
            worker = heartbeat.Identity.worker
            self.request_dict[_CLAIM] = str(uuid4())
            self.request_dict[_WORKER] = worker and str(worker)
            self.request_dict.update(self.request_dict.get(TIMES_HEADER, {}))

    @property
    def claim_id(self) -> UUID | None:
        """The id of the claim by which this delivery runs its call; None for a task without the dispatcher."""
        return uuid_of(self.request_dict.get(_CLAIM))

    @property
    def ticket(self) -> UUID | None:
        """The ticket that the message carries; None for a task that came without the dispatcher."""
        return ticket_in(self.request_dict, self.id)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Hold the call from now on: the pool runs its task."""
        heartbeat.running.add(self)
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 -- Celery's signature
        """End the attempt when the hard time limit has killed its process."""
        if soft or self.ticket is None:
            super().on_timeout(soft, timeout)
        else:
            logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
            self._lose(TimeLimitExceeded(timeout))

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002 -- Celery's signature
        return_ok: bool = False,  # noqa: FBT001, FBT002 -- the same
    ) -> None:
        """End the attempt when its process was lost or terminated."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        is_cut_off = self.ticket is not None and not return_ok
        if not is_cut_off or not isinstance(error, (WorkerLostError, SystemExit, TimeLimitExceeded)):
            heartbeat.running.discard(self)
            super().on_failure(exc_info, send_failed_event, return_ok)
        if is_cut_off and isinstance(error, (WorkerLostError, SystemExit, Terminated)):
            self._lose(error)

    def _retry_worker_lost(self, exc: BaseException, exc_info: ExceptionInfo) -> bool:
        """Leave the retry of a lost process (`retry_on_worker_lost`) to the queue, which counts it."""
        retried: bool = self.ticket is None and super()._retry_worker_lost(exc, exc_info)
        return retried

    def _lose(self, error: BaseException) -> None:
        """End the attempt in the database; that is reported then, since another one may follow."""
        assert self.ticket is not None  # noqa: S101 -- its callers look
        heartbeat.running.discard(self)
        task_ready(self)
        self.acknowledge()
        logger.error("%r: call %s[%s] was running", error, self.name, self.id)
        gone = InFlight(call_id=UUID(self.id), ticket=self.ticket, claim=self.claim_id)
        what = f"end the attempt of call {self.id}, which keeps its slots until its lease ends"
        facts: Any = {"hostname": self.hostname, "send_event": self.send_event}
        heartbeat.in_background(what, partial(failures.lose, self.task.app, gone, error, **facts))


class DispatchedTask(DjangoTask):
    """A task whose retries wait in the database; in a worker it claims its call (see dispatcher.celery.fence)."""

    Request = DispatchedRequest

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run in the request of the message; from code, or by itself from within its own attempt, in one of its own."""
        request = self.request
        if request.called_directly or request.get("is_running"):
            return super().__call__(*args, **kwargs)
        request.update(is_running=True)
        return self.run(*args, **kwargs)

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
        """Try again later, as Celery documents it: a dispatched call waits in the database, and is counted.

        Raises `exc`, or else MaxRetriesExceededError, if no retry is left: whatever the task raises then ends its call.
        Raises TypeError or CallInvalid for what a waiting call can't have (see dispatcher.celery.retries).
        """
        request = self.request
        if ticket_of(request) is None or request.called_directly:
            again: RetryAsked = super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
            return again
        asked = retries.asked(
            self,
            args=args,
            kwargs=kwargs,
            exc=exc,
            eta=eta,
            countdown=countdown,
            max_retries=max_retries,
            options=options,
        )
        if not asked.may_retry:
            request.update(is_spent=True)
            raise_with_context(asked.cause)
        if throw:
            raise asked
        request.update(retry_asked=asked)
        return asked

    def replace(self, sig: Signature[Any]) -> Any:
        """Replace the task, as Celery documents it; the call of a dispatched one becomes the other task's, or ends.

        Raises CallInvalid, PolicyInvalid or ImproperlyConfigured for what a call can't be: another attempt would be
        refused as well.
        """
        if ticket_of(self.request) is None:
            return super().replace(sig)
        with _spent_if_invalid(self.request):
            if not isinstance(sig, Signature):
                message = f"{sig!r} is not a signature: give one, such as task.s()."
                raise CallInvalid("replace", message)
            return super().replace(sig)

    def on_replace(self, sig: Signature[Any]) -> Any:
        """Make the call that of the other task, or end it."""
        request, ticket = self.request, ticket_of(self.request)
        if ticket is None or request.called_directly or is_eager():
            return super().on_replace(sig)
        raise replacement.asked(self, sig, ticket=ticket)

    def ensure_held(self) -> None:
        """Raise TicketReplaced if this attempt has lost its call to another one, and so must not act any more.

        For a task that may have been stopped for long (by a frozen machine, say) before it does what can't be undone.
        """
        ticket = ticket_of(self.request)
        if ticket is not None and not engine.is_held(UUID(self.request.id), ticket):
            raise TicketReplaced(self.request.id)


def ticket_of(request: Context) -> UUID | None:
    """Return the ticket of the message that a task runs for, or of its run; None if it came without the dispatcher."""
    run = request.get(RUN)
    return ticket_in(headers_of(request), request.id) if run is None else run.start.call.ticket


def attempt_of(task: Task, run: Callable[[], Any]) -> Any:
    """Run a task as one attempt of the call of its message; return or raise what Celery makes the result of."""
    ticket = ticket_of(task.request)
    assert ticket is not None  # noqa: S101 -- its callers look
    if (loop_run := task.request.get(RUN)) is not None:
        return _result_of(loop_run.attempt(partial(_run, task, run)))
    # A process that was not forked does not know its worker by itself.
    worker = uuid_of(task.request.get(_WORKER)) or heartbeat.Identity.worker
    claim_id = uuid_of(task.request.get(_CLAIM))
    outcome = engine.execute(UUID(task.request.id), ticket, partial(_run, task, run), worker=worker, claim_id=claim_id)
    return _result_of(outcome)


def _result_of(outcome: Outcome | Refused | None) -> Any:
    """Return or raise what Celery makes the result of."""
    match outcome:
        case Returned():
            return outcome.value
        case Ignored():
            raise outcome.error
        case Failed(may_retry=True) | Stopped():
            # Celery's own class: it travels from the pool's process to the worker's, whatever the cause.
            seconds = outcome.wait.total_seconds() if outcome.wait is not None else 0
            raise Retry(exc=outcome.error, when=seconds) from outcome.error
        case Failed(error=Retry() as error):
            # Celery would take it for one that is still to come.
            raise MaxRetriesExceededError(str(error)) from error
        case Failed(error=Reject() as error):
            # Its call has ended: Celery ends it as well, and brings nothing again.
            raise Reject(error.reason, requeue=False) from error
        case Failed():
            raise outcome.error
        case None | Refused():
            raise Ignore
        case _:
            assert_never(outcome)


def _run(task: Task, run: Callable[[], Any]) -> Any:
    """Run a task, and return or raise what its attempt ended with: what it asked for counts, whatever else it did."""
    try:
        result = _run_to_its_end(task, run)
    except (SystemExit, KeyboardInterrupt, CancelledError) as error:
        if isinstance(error, ProcessEnds) or (current_thread() is main_thread() and task.request.get(RUN) is None):
            raise
        # A loop, and a pool of threads or greenlets, go on, and Celery does not learn that the task has ended.
        message = f"the task ended with {error!r}"
        raise TaskExited(message) from error
    except Exception as error:
        if task.request.get("is_spent") and not isinstance(error, Ignore):
            cause = error.cause if isinstance(error, RetryAsked) else error
            raise RetryAsked(cause, None, may_retry=False) from error
        raise
    if (asked := task.request.get("retry_asked")) is not None:
        # self.retry(throw=False): the task went on to its end, and is tried again all the same.
        raise asked
    if task.ignore_result or task.request.ignore_result:
        return Unstored(result)
    if not (task.request.is_eager or isinstance(task.backend, DisabledBackend)):
        try:
            task.backend.encode(result)
        except EncodeError as error:
            # Celery would make a failure of it once the call has ended well; the task is not to do all of it again.
            raise RetryAsked(error, None, may_retry=False) from error
    return result


def _run_to_its_end(task: Task, run: Callable[[], Any]) -> Any:
    """Run a task's own code; start the workflow by which it has replaced itself after that."""
    try:
        return run()
    except replacement.WorkflowAsked as asked:
        with _spent_if_invalid(task.request):
            asked.start()
        raise Ignore(*asked.args) from None


@contextmanager
def _spent_if_invalid(request: Context) -> Iterator[None]:
    """Let no other attempt follow one that has asked for what a call can't be."""
    try:
        yield
    except (FieldInvalid, ImproperlyConfigured):
        request.update(is_spent=True)
        raise


@signals.task_revoked.connect
def cancel_revoked(request: Context, **_: Any) -> None:
    """Cancel the call of a message that was revoked before it started; one that runs is ended by its request."""
    if ticket_of(request) is None:
        return
    call_id = UUID(request.id)

    def cancel() -> None:
        api.cancel([call_id])
        revoke.forget(call_id)

    heartbeat.in_background(f"cancel call {request.id}, which was revoked and comes again when its lease ends", cancel)


@signals.task_prerun.connect
@signals.task_postrun.connect
def keep_connections(task: Task, **_: Any) -> None:
    """Close connections when CONN_MAX_AGE says so (see KeptConnections)."""
    if not task.request.is_eager:
        close_old_connections()
