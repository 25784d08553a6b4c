"""The fence: every task of a worker claims the call of a message with a ticket, whatever the class of the task is.

It gets a subclass of its class that claims. That happens when a worker starts, in each process that it forks or spawns,
at the first send, and before a task runs eagerly. Calls of tasks that the worker does not know, which Celery would
fail, are put back.
"""

import logging
from collections.abc import Callable
from functools import partial
from types import new_class
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import Celery, Task, bootsteps, current_app, signals
from celery.app import trace
from celery.exceptions import Ignore, ImproperlyConfigured
from celery.utils.imports import symbol_by_name
from celery.worker import WorkController
from celery.worker.request import Request

from dispatcher import engine
from dispatcher.celery import DispatchedRequest, DispatchedTask, attempt_of, heartbeat, ticket_of
from dispatcher.celery.heartbeat import KeptConnections, Presence
from dispatcher.celery.periodic import PeriodicTasks
from dispatcher.conf import conf
from dispatcher.engine import workers
from dispatcher.limited import keys_of, routers_of
from dispatcher.messages.tickets import ticket_in

if TYPE_CHECKING:
    # Not while Django is set up: an SDK that traces tasks patches what the consumer imports.
    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)


class Claiming(Task):
    """The first class of a fenced task: it claims before anything of the task's own class runs."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Leave the task's own handler to the claimed attempt."""
        if ticket_of(self.request) is None and not is_unticketed(self, args, kwargs):
            super().before_start(task_id, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task's own `before_start` and `__call__` as one attempt of its call."""
        request = self.request
        if is_unticketed(self, args, kwargs):
            enqueue(self, args, kwargs)
            raise Ignore
        if request.called_directly or request.get("is_claimed") or ticket_of(request) is None:
            return super().__call__(*args, **kwargs)
        request.update(is_claimed=True)

        def run() -> Any:
            super(Claiming, self).before_start(request.id, args, kwargs)
            return super(Claiming, self).__call__(*args, **kwargs)

        return attempt_of(self, run)


def is_unticketed(task: Task, args: Any, kwargs: Any) -> bool:
    """Return whether a message of a limited task came without a call, and is to become one (`unticketed`)."""
    request = task.request
    if request.called_directly or request.is_eager or not routers_of(task.name) or ticket_of(request) is not None:
        return False
    return conf().unticketed == "enqueue" and keys_of(task.name, args, kwargs, {}) is not None


def enqueue(task: Task, args: Any, kwargs: Any) -> None:
    """Send the task of a message as a call, with its id and all that the message has."""
    options = task.signature_from_request(task.request, args, kwargs).options
    # What the broker says of this delivery.
    options.pop("redelivered", None)
    task.app.send_task(task.name, args, kwargs, task_type=task, add_to_parent=False, **options)


def fence(task: Task) -> bool:
    """Let a task claim; return whether that changed it. Raises TypeError naming the task if its class can't."""
    kind = type(task)
    if issubclass(kind, Claiming):
        return False
    bases = (Claiming, kind) if issubclass(kind, DispatchedTask) else (Claiming, kind, DispatchedTask)
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    try:
        request = _request_class(symbol_by_name(task.Request))
        task.__class__ = new_class(kind.__name__, bases, exec_body=lambda ns: ns.update(body))
        task.Request = request
    except Exception as error:
        # The class is the project's: its metaclass, its __init_subclass__ and its layout may refuse in any way.
        message = f"the class {kind.__qualname__} of the task {getattr(task, 'name', task)} can't be fenced: {error}"
        raise TypeError(message) from error
    return True


def fence_all(app: Celery) -> list[str]:
    """Fence every task of an app; return what is wrong with those that can't be fenced."""
    problems = []
    for _, task in sorted(app.tasks.items()):
        try:
            fence(task)
        except TypeError as error:
            problems.append(str(error))
    return problems


def _request_class(kind: type[Request]) -> type[Request]:
    """Return a class of requests that also ends the attempts of lost processes."""
    if issubclass(kind, DispatchedRequest):
        return kind
    if issubclass(DispatchedRequest, kind):
        return DispatchedRequest
    return new_class(
        kind.__name__, (DispatchedRequest, kind), exec_body=lambda ns: ns.update(__module__=kind.__module__)
    )


class Fence(bootsteps.StartStopStep):
    """Fences all tasks of the worker before its pool starts; a worker that can't does not start."""

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Fence what is registered by now, before the pool's processes are forked."""
        super().__init__(worker, **kwargs)
        if problems := fence_all(worker.app):
            message = f"Their calls would never be claimed: {'; '.join(problems)}."
            raise ImproperlyConfigured(message)

    def start(self, worker: WorkController) -> None:
        """Fence what was registered since, before the worker takes messages."""
        fence_all(worker.app)


class UnknownTasks(bootsteps.Step):
    """Lets the worker's consumer put the calls of unknown tasks back.

    Celery itself stores the failure of such a message in the result backend, before it sends `task_unknown`.
    """

    def __init__(self, consumer: "Consumer", **kwargs: Any) -> None:
        """Wrap the consumer's handler of unknown tasks."""
        super().__init__(consumer, **kwargs)
        consumer.on_unknown_task = partial(_on_unknown_task, consumer, consumer.on_unknown_task)


def _on_unknown_task(
    consumer: "Consumer", refuse: Callable[..., None], body: Any, message: Any, exc: Exception
) -> None:
    """Put back a call whose task this worker does not know; no attempt is spent."""
    if (ticket := ticket_of_message(message)) is None:
        refuse(body, message, exc)
        return
    message.ack_log_error(logger, consumer.connection_errors)
    name, call = message.headers["task"], message.headers["id"]
    logger.warning("this worker has no task %s; its call %s waits for a worker that has it", name, call)
    heartbeat.in_background(
        f"put back call {call}, which keeps its slots until its lease ends",
        partial(workers.return_unknown, UUID(call), ticket),
    )


@signals.task_rejected.connect
def fail_rejected(message: Any, exc: Exception | None, **_: Any) -> None:
    """Record a failed attempt of a call whose message Celery can't read and drops."""
    ticket = ticket_of_message(message)
    if ticket is not None and exc is not None:
        call = message.headers["id"]
        heartbeat.in_background(
            f"fail call {call}, which keeps its slots until its lease ends",
            partial(engine.fail_unread, UUID(call), ticket, exc),
        )


def ticket_of_message(message: Any) -> UUID | None:
    """Return the ticket that a message carries; None if it came without the dispatcher."""
    headers = message.headers or {}
    return ticket_in(headers, headers.get("id"))


@signals.worker_init.connect
def join_worker(sender: WorkController, **_: Any) -> None:
    """Give a worker that starts the dispatcher's part of it, whatever the base class of its tasks."""
    sender.app.steps["worker"].update((Fence, KeptConnections, Presence, PeriodicTasks))
    sender.app.steps["consumer"].add(UnknownTasks)


@signals.worker_process_init.connect
def fence_process(sender: str | None, **_: Any) -> None:
    """Fence the tasks of a pool's process that was spawned, or that registered more; one that was forked has them."""
    app = current_app._get_current_object()  # noqa: SLF001 -- Celery's name for the app itself
    for name, task in app.tasks.items():
        if fence(task):
            task.__trace__ = trace.build_tracer(name, task, app.loader, sender, app=app)
