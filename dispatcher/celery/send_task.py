"""The hook over `Celery.send_task`, which every way to send a task passes: calls of limited tasks are sent by `send`.

`.delay()`, `apply_async` of any class, signatures and workflows, links, beat and `send_task` by name come by here. A
task without limits is sent as always, and so are the messages that the dispatcher itself makes.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import wraps
from typing import Any, Final

from celery import Celery, Task
from celery.backends.rpc import RPCBackend
from celery.canvas import Signature
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db import IntegrityError

from dispatcher import api, sql, validate
from dispatcher.conf import conf
from dispatcher.limited import keys_of, routers_of
from dispatcher.limits.retry import Retry
from dispatcher.messages.capture import HOOKED, Recorder
from dispatcher.messages.signature import options_of
from dispatcher.messages.tickets import uuid_of
from dispatcher.models import CallQueue
from dispatcher.request import Call

_OF_A_PUBLICATION: Final = frozenset({"connection", "producer", "publisher", "retry", "retry_policy"})
"""Options of how the broker is reached: the database takes the call, or the error of that is raised."""
_OF_THE_CALLER: Final = frozenset({"add_to_parent", "outside", "result_cls", "task_type"})
_HIGHEST: Final = 100
"""The highest priority of a call; -100 is the lowest."""


def hook() -> None:
    """Put the hook over `Celery.send_task`, and over what others have put there."""
    celerys = Celery.send_task

    @wraps(celerys)
    def send_task(app: Celery, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if not routers_of(name) or isinstance(options.get("producer"), Recorder):
            return celerys(app, name, args, kwargs, *more, **options)
        named = list(inspect.signature(celerys).parameters)[4:]
        given = {**dict(zip(named, more, strict=False)), **options}
        keys = keys_of(name, args, kwargs, given)
        if keys is None:
            return celerys(app, name, args, kwargs, *more, **options)
        return _send(app, name, args, kwargs, keys, given)

    setattr(send_task, HOOKED, (send_task, celerys))
    Celery.send_task = send_task  # type: ignore[method-assign]


def _send(app: Celery, name: str, args: Any, kwargs: Any, keys: Mapping[str, int], given: dict[str, Any]) -> Any:
    """Send a call as `send` does, once for each id; return what `send_task` returns. Raises CallInvalid."""
    task: Task | None = given.get("task_type") or app.tasks.get(name)
    with _own_connection() if given.get("outside") else nullcontext():
        task_id = given.get("task_id")
        if not _is_sent(task_id):
            try:
                task_id = str(api.send(_call(app, name, args, kwargs, keys, given, task)).id)
            except IntegrityError:
                # A process that lost the call sends what follows it at this moment, too.
                if sql.in_transaction() or not _is_sent(task_id):
                    raise
    ignores = given.get("ignore_result")
    ignores = task.ignore_result if ignores is None and task is not None else ignores
    if isinstance(app.backend, RPCBackend) and not ignores:
        with app.producer_or_acquire() as producer:
            app.backend.on_task_call(producer, task_id)
    result: AsyncResult[Any] = (given.get("result_cls") or app.AsyncResult)(task_id)
    result.ignored = ignores
    parent = app.current_worker_task if given.get("add_to_parent", True) else None
    if parent is not None:
        parent.add_trail(result)
    return result


@contextmanager
def _own_connection() -> Iterator[None]:
    """Send on a connection of its own: what becomes of the caller's transaction changes nothing."""
    wrapper = sql.new_connection()
    try:
        with sql.using(wrapper):
            yield
    finally:
        wrapper.close()


def _is_sent(task_id: object) -> bool:
    """Return whether there is a call with this id: a task that runs again sends what follows it again."""
    call_id = uuid_of(task_id)
    return call_id is not None and CallQueue.objects.filter(id=call_id).exists()


def _call(
    app: Celery,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    keys: Mapping[str, int],
    given: Mapping[str, Any],
    task: Task | None,
) -> Call:
    """Return the call of a task, with the options that are not its own; it is retried as the task has it."""
    left_out = _OF_A_PUBLICATION | _OF_THE_CALLER
    own = options_of(task)
    options = {
        option: value
        for option, value in given.items()
        if option not in left_out and (value is not None or option in own) and own.get(option) != value
    }
    for option in {"eta", "expires"} & options.keys():
        options[option] = _aware(options[option], app)
    if isinstance(app.backend, RPCBackend):
        options.setdefault("reply_to", app.thread_oid)
    return Call(
        Signature(name, args=validate.plain(args), kwargs=validate.plain(kwargs), options=options, app=app),
        keys=keys,
        priority=_priority(app, given.get("priority")),
        retry={"decided_by": "task", "max_attempts": _attempts(task)},
    )


def _aware(at: Any, app: Celery) -> Any:
    """Return a time with a zone: Celery takes one without for its own."""
    at = maybe_iso8601(at) if isinstance(at, str) else at
    return maybe_make_aware(at, app.timezone) if isinstance(at, datetime) else at


def _priority(app: Celery, priority: Any) -> int:
    """Return the call's place for a priority of the message: with RabbitMQ the highest is first, with Redis the lowest."""
    if not isinstance(priority, int):
        return 0
    is_redis = str(app.conf.broker_write_url).startswith(("redis", "sentinel"))
    return max(-priority if is_redis else min(priority, _HIGHEST), -_HIGHEST)


def _attempts(task: Task | None) -> int:
    """Return how often a call may start whose process was lost: again only if it is acknowledged late, as in Celery."""
    return Retry.parse(conf().retry).max_attempts if task is not None and task.acks_late else 1
