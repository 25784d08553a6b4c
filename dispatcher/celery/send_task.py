"""The hook over `Celery.send_task`, which every way to send a task passes: calls of limited tasks are sent by `send`.

`.delay()`, `apply_async` of any class, signatures and workflows, links, beat and `send_task` by name come by here. A
task without limits is sent as always, and so are the messages that the dispatcher itself makes.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import uuid_utils.compat as uuid7
from celery import Celery, Task, current_app
from celery.backends.rpc import RPCBackend
from celery.canvas import Signature
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db import IntegrityError

from dispatcher import api, sql, validate
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid
from dispatcher.limited import keys_of, routers_of
from dispatcher.limits.retry import Retry
from dispatcher.messages.capture import HOOKED, Recorder
from dispatcher.messages.tickets import OF_TICKET, uuid_of
from dispatcher.models import CallQueue
from dispatcher.request import Call, Extras
from dispatcher.states import State

if TYPE_CHECKING:
    from celery.result import AsyncResult

_NOT_OF_THE_CALL: Final = frozenset(
    {
        # How the broker is reached: the database takes the call, or the error of that is raised.
        *("connection", "producer", "publisher", "retry", "retry_policy"),
        # What is done with the result, and what the task is.
        *("add_to_parent", "outside", "result_cls", "task_type"),
    }
)
_asked: Final[dict[Any, list["_Sending"]]] = {}
"""What running tasks replace themselves by, by their ids: it is not sent."""
_HIGHEST: Final = 100
"""The highest priority of a call; -100 is the lowest."""


def hook() -> None:
    """Put the hook over `Celery.send_task`, and over what others have put there."""
    celerys = Celery.send_task
    if hasattr(celerys, HOOKED):
        # The apps were set up again, as by tests that change INSTALLED_APPS.
        return
    parameters = [*inspect.signature(celerys).parameters][1:]

    @wraps(celerys)
    def send_task(app: Celery, /, *by_place: Any, **options: Any) -> Any:
        # Python compares each option with each parameter that has a name: half of what the hook would cost.
        if (_asked or routers_of(by_place[0] if by_place else options["name"])) and not isinstance(
            options.get("producer"), Recorder
        ):
            given = {**dict(zip(parameters, by_place, strict=False)), **options}
            name, args, kwargs = given.pop("name"), given.pop("args", None), given.pop("kwargs", None)
            asked = _asked.get(given.get("task_id"))
            with _as_current(app):
                keys = keys_of(name, args, kwargs, given)
                sending = _Sending(app=app, name=name, args=args, kwargs=kwargs, given=given, keys=keys or ())
                if asked is not None:
                    asked.append(sending)
                    return app.AsyncResult(given["task_id"])
                if keys is not None:
                    return sending.send()
        options.pop("outside", None)  # a message is outside of transactions as it is
        return celerys(app, *by_place, **options)

    setattr(send_task, HOOKED, (send_task, celerys))
    Celery.send_task = send_task


def send_with(task: str, args: Any = None, kwargs: Any = None, *, keys: Any = None, **options: Any) -> Any:
    """Send a task by its name, with these keys and Celery's options; return what `send_task` returns.

    keys: names or {name: cost}; None: those that are declared for the task. Raises CallInvalid or PolicyInvalid.
    """
    app = current_app._get_current_object()  # noqa: SLF001 -- Celery's name for the app itself
    keys = keys_of(task, args, kwargs, options) or () if keys is None else keys
    return _Sending(app=app, name=task, args=args, kwargs=kwargs, given=options, keys=keys).send()


def asked_by(signature: Signature, task_id: str, *, keys: Any) -> tuple[Call, Mapping[str, Any]]:
    """Return the call that a signature with this id asks for, and the options; nothing is sent.

    keys: those that it spends; None: those that are declared for its task. Raises CallInvalid if it sends nothing so.
    """
    found = _asked[task_id] = list[_Sending]()
    try:
        signature.delay()
    finally:
        del _asked[task_id]
    if not found:
        raise CallInvalid("replace", f"apply_async of {signature.task} has sent nothing under the id of the call.")
    sending = found[0]
    return (sending if keys is None else replace(sending, keys=keys)).call(UUID(task_id)), sending.given


@dataclass(frozen=True, kw_only=True)
class _Sending:
    """A limited task that is sent, with the options that `send_task` was given."""

    app: Celery
    name: str
    args: Any
    kwargs: Any
    given: Mapping[str, Any]
    keys: Any

    @property
    def task(self) -> Task | None:
        """The task; None if this process does not know it."""
        task: Task | None = self.given.get("task_type") or self.app.tasks.get(self.name)
        return task

    def send(self) -> Any:
        """Send the call, once for each id; return what `send_task` returns. Raises CallInvalid or PolicyInvalid."""
        given, made = self.given.get("task_id"), uuid7.uuid7()
        task_id, call = given or str(made), self.call(made)
        with sql.outside() if self.given.get("outside") else nullcontext():
            try:
                # A task that runs again sends what follows it again; the rest of a transaction is kept then.
                with sql.atomic() if given and sql.in_transaction() else nullcontext():
                    _write(call)
            except IntegrityError:
                if not self._takes_place(call) and not _is_sent(task_id):
                    raise
        return self.result(task_id)

    def _takes_place(self, call: Call) -> bool:
        """Send the call that ends a workflow in the place of the one that was replaced by it; return whether it is one.

        It has the same id, and is nested deeper.
        """
        nesting, call_id = self.given.get("replaced_task_nesting"), uuid_of(self.given.get("task_id"))
        if not nesting or call_id is None:
            return False
        with sql.atomic():
            # Any state: it may be about to end.
            replaced = CallQueue.objects.filter(id=call_id).select_for_update().first()
            if replaced is None or replaced.state != State.COMPLETED:
                return False
            if (replaced.options or {}).get("replaced_task_nesting", 0) >= nesting:
                return False
            replaced.delete()
            _write(call)
        return True

    def call(self, call_id: UUID) -> Call:
        """Return the call, which is retried as the task has it. call_id: its id, unless one is given."""
        own = {} if self.task is None else {"ignore_result": self.task.ignore_result}
        options = {
            option: value
            for option, value in self.given.items()
            if option not in _NOT_OF_THE_CALL and not (option in own and own[option] == value)
        }
        # A task may pass those of its own message on.
        headers = options.pop("headers", None) or {}
        options["headers"] = {name: value for name, value in headers.items() if name not in OF_TICKET} or None
        for option in {"eta", "expires"} & options.keys():
            options[option] = _aware(options[option], self.app)
        if isinstance(self.app.backend, RPCBackend):
            options["reply_to"] = options.get("reply_to") or self.app.thread_oid
        args, kwargs = validate.plain(self.args), validate.plain(self.kwargs)
        # A process that is lost ends a task in Celery, unless it is acknowledged late.
        is_late = self.task is not None and self.task.acks_late
        attempts = Retry.parse(conf().retry).max_attempts if is_late else 1
        return Call(
            Signature(self.name, args=args, kwargs=kwargs, options=options, app=self.app),
            keys=self.keys,
            priority=_priority(self.app, self.given.get("priority")),
            retry={"decided_by": "task", "max_attempts": attempts},
            extras=Extras(id=call_id, is_celerys=True),
        )

    def result(self, task_id: Any) -> Any:
        """Return the result of the task with this id, and make it one of the task that sends."""
        ignores = self.given.get("ignore_result")
        if ignores is None and self.task is not None:
            ignores = self.task.ignore_result
        if isinstance(self.app.backend, RPCBackend) and not ignores:
            with self.app.producer_or_acquire() as producer:
                self.app.backend.on_task_call(producer, task_id)
        result: AsyncResult[Any] = (self.given.get("result_cls") or self.app.AsyncResult)(task_id)
        result.ignored = ignores
        parent = self.app.current_worker_task if self.given.get("add_to_parent", True) else None
        if parent is not None:
            parent.add_trail(result)
        return result


def _write(call: Call) -> None:
    """Send a call; once more, where a connection that was kept has been lost: Celery publishes again, too."""
    was_open = sql.connection().connection is not None and not sql.in_transaction()
    try:
        api.send(call)
    except sql.DATABASE_ERRORS:
        if not was_open or sql.connection().connection is not None:
            raise
        api.send(call)


@contextmanager
def _as_current(app: Celery) -> Iterator[None]:
    """Send as this app does, with its tasks and routes, whatever app is the process's own."""
    before = current_app._get_current_object()  # noqa: SLF001 -- Celery's name for the app itself
    app.set_current()
    try:
        yield
    finally:
        before.set_current()


def _is_sent(task_id: object) -> bool:
    """Return whether there is a call with this id."""
    call_id = uuid_of(task_id)
    return call_id is not None and CallQueue.objects.filter(id=call_id).exists()


def _aware(at: Any, app: Celery) -> Any:
    """Return a time with a zone: Celery takes one without for its own. What is no time stays, to be refused by name."""
    if isinstance(at, str):
        with suppress(ValueError):
            at = maybe_iso8601(at)
    return maybe_make_aware(at, app.timezone) if isinstance(at, datetime) else at


def _priority(app: Celery, priority: Any) -> int:
    """Return the priority of a call for that of a message: with Redis the lowest goes first."""
    if not isinstance(priority, int):
        return 0
    is_redis = str(app.conf.broker_write_url).startswith(("redis", "sentinel"))
    return max(-priority if is_redis else min(priority, _HIGHEST), -_HIGHEST)
