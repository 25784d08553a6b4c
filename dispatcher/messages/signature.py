"""What a task, a signature and a sender ask of a call's message, read as Celery's `Task.apply_async` reads it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from celery import Celery, Task, current_app
from celery.app.task import extract_exec_options
from celery.canvas import Signature
from celery.exceptions import QueueNotFound

from dispatcher import limited, validate
from dispatcher.errors import CallInvalid
from dispatcher.messages.options import CHECKS, checked
from dispatcher.messages.tickets import CALL_HEADER, TICKET_HEADER, uuid_of
from dispatcher.request import Call, Extras

_LONGEST: Final = timedelta(days=36_525)
"""The longest countdown or expiry."""

_WORKER_READS: Final = {
    "time_limit": "task_time_limit",
    "soft_time_limit": "task_soft_time_limit",
    "ignore_result": "task_ignore_result",
}
"""Attributes that come from a setting where the task names none; a worker has the same settings."""
_CANVAS: Final = frozenset(f"celery.{name}" for name in ("chain", "chord", "chunks", "group"))
_NO_CANVAS: Final = (
    "is a workflow of Celery, and no call; start it by .delay(), with its tasks under limits by DISPATCHER['tasks']."
)
_LINKS: Final = ("link", "link_error")
_REFUSED: Final = {
    "retry": "a message is published until the broker takes it; leave it out. send() takes the task's retry policy.",
    "retry_policy": "a message is published until the broker takes it; leave it out.",
}


@dataclass(frozen=True, kw_only=True)
class SendRequest:
    """A call with the options that its task, its signature and its sender give together.

    options: of the message, as of `apply_async`, where they are not the default. scheduled_in, expires_in: counted from
    the send, by the database's clock.
    """

    call: Call
    task: str
    queue: str
    options: Mapping[str, Any]
    scheduled_in: timedelta | None = None
    expires_in: timedelta | None = None


class Sender:
    """The process that sends: its app, the task that it runs, and the tasks that it knows, each looked up once."""

    def __init__(self) -> None:
        self.app: Celery = current_app._get_current_object()  # noqa: SLF001 -- Celery's proxy costs more than the rest
        self.parent = self._parent()
        self._known: dict[str, tuple[Task | None, dict[str, Any]]] = {}

    def task(self, name: str) -> tuple[Task | None, dict[str, Any]]:
        """Return a task, and those of its options that its message would not have without them."""
        known = self._known.get(name)
        if known is None:
            task = self.app.tasks.get(name)
            own = _own(task)
            for option, setting in _WORKER_READS.items():
                if option in own and own[option] == self.app.conf[setting]:
                    del own[option]
            known = self._known[name] = task, own
        return known

    def _parent(self) -> dict[str, Any]:
        """Return the options that a call has from the task that sends it."""
        sender = self.app.current_worker_task
        if sender is None:
            return {}
        request = sender.request
        found = {"root_id": request.root_id or request.id, "parent_id": request.id}
        if self.app.conf.task_inherit_parent_priority:
            found["priority"] = (request.delivery_info or {}).get("priority")
        return {name: value for name, value in found.items() if value is not None}


def read(call: Call, sender: Sender) -> SendRequest:
    """Return a call with the options of its task and its signature merged as Celery does. Raises CallInvalid."""
    call, given = _without_signature(call)
    name = getattr(call.task, "name", call.task)
    if not isinstance(name, str) or not name:
        raise CallInvalid(
            "task", f"{call.task!r} must be a Celery task, its name such as 'shop.charge', or a signature."
        )
    if name in _CANVAS:
        raise CallInvalid("task", f"{name} {_NO_CANVAS}")
    for option, value in given.items():
        if option in _REFUSED and value is not None:
            raise CallInvalid(option, _REFUSED[option])
    if given.get("task_id") is not None:
        call = replace(call, extras=replace(call.extras or Extras(), id=_task_id(given["task_id"])))
    route_name = given.pop("route_name", None) or name
    task, own = sender.task(name)
    if task is not None and call.call_data is None:
        call = _with_arguments(call, task)
    if call.keys is None:
        call = replace(call, keys=limited.keys_of(name, call.args, call.kwargs, given))
    if call.headers is not None or given.get("headers") is not None:
        call = replace(call, headers=_headers(given.pop("headers", None), call.headers))
    given.pop("task_id", None)
    queue, routed = _route({**own, **given}, route_name, call, task, sender.app)
    call, scheduled_in, expires_in = _times(call, routed)
    if task is not None and "shadow" not in routed:
        shadow = task.shadow_name(call.args or (), call.kwargs or {}, dict(routed))
        routed |= {} if shadow is None else {"shadow": shadow}
    # None takes an option of the task back.
    taken_back = {option: None for option in own if option in CHECKS and option in given and given[option] is None}
    return SendRequest(
        call=call,
        task=name,
        queue=queue,
        options=checked({**sender.parent, **routed}) | taken_back,
        scheduled_in=scheduled_in,
        expires_in=expires_in,
    )


def options_of(task: Task | None) -> Mapping[str, Any]:
    """Return the options that a task's own attributes give a message."""
    return {name: value for name, value in _own(task).items() if name in CHECKS and value != "pickle"}


def _own(task: Task | None) -> dict[str, Any]:
    """Return the attributes of a task that `Task.apply_async` takes as options of the message."""
    own = {} if task is None else {**extract_exec_options(task), "ignore_result": task.ignore_result}
    return {name: value for name, value in own.items() if value is not None}


def _without_signature(call: Call) -> tuple[Call, dict[str, Any]]:
    """Return the call with the arguments of the signature that it was given as its task, and the signature's options.

    As in Celery, positional arguments given with it come before its own, and keyword arguments win over its own.
    """
    task = call.task
    if not isinstance(task, Signature):
        return call, {}
    if type(task) is not Signature or task.subtask_type:
        raise CallInvalid("task", f"a {task.subtask_type or type(task).__name__} {_NO_CANVAS}")
    args, kwargs = validate.sequence("args", call.args), validate.mapping("kwargs", call.kwargs)
    if task.immutable and (args or kwargs):
        remedy = "leave them out, or make the signature by .s()."
        raise CallInvalid("args" if args else "kwargs", f"the signature is immutable and takes no arguments; {remedy}")
    merged = replace(
        call, task=task.task, args=[*args, *(task.args or ())], kwargs={**(task.kwargs or {}), **(kwargs or {})}
    )
    return merged, {name: value for name, value in (task.options or {}).items() if value or name not in _LINKS}


def _task_id(given: object) -> UUID:
    """Return the id of a call that is to be this task's. Raises CallInvalid for what is not written as a UUID is."""
    call_id = uuid_of(given)
    if call_id is None or str(call_id) != given:
        raise CallInvalid("task_id", f"{given!r} must be a UUID, as celery.uuid() makes one: it is the id of the call.")
    return call_id


def _with_arguments(call: Call, task: Task) -> Call:
    """Return the call with arguments that its task takes; pydantic models as JSON, where the task is declared so."""
    args, kwargs = validate.sequence("args", call.args), validate.mapping("kwargs", call.kwargs) or {}
    check = getattr(task, "__header__", None)
    if task.typing and check is not None:
        try:
            check(*args, **kwargs)
        except TypeError as error:
            remedy = "give the arguments that the task takes, or declare the task with typing=False."
            raise CallInvalid("args", f"{task.name} can't be called so: {error}; {remedy}") from error
    dump = getattr(task, "_dump_pydantic_arguments", None)
    if dump is None:
        return call
    args, kwargs = dump(args, kwargs)
    return replace(call, args=args, kwargs=kwargs)


@cache
def protocol() -> frozenset[str]:
    """Return the headers of Celery's message protocol, and the ticket's."""
    return frozenset({*current_app.amqp.as_task_v2("", "").headers, CALL_HEADER, TICKET_HEADER})


def _headers(*given: object) -> dict[str, Any] | None:
    """Merge headers, the later ones over those before. Raises CallInvalid for one that is Celery's own."""
    headers = {name: value for each in given for name, value in (validate.mapping("headers", each) or {}).items()}
    for name in headers:
        if name in protocol():
            raise CallInvalid(f"headers[{name!r}]", "is a header of Celery's own; choose another name.")
    return headers or None


def _route(
    options: dict[str, Any], name: str, call: Call, task: Task | None, app: Celery
) -> tuple[str, dict[str, Any]]:
    """Return the queue of a call, and its options with those that `task_routes` adds."""
    explicit: Any = call.queue
    if explicit is None and options.get("queue") is not None:
        options["queue"] = getattr(options["queue"], "name", options["queue"])
    else:
        options.pop("queue", None)
    try:
        routed = dict(app.amqp.router.route(options, name, call.args or (), call.kwargs or {}, task))
    except QueueNotFound as error:
        raise CallInvalid("queue", f"{error}; name one of task_queues.") from error
    found = routed.pop("queue", None)
    if explicit is None and found is None and (routed.get("exchange") or routed.get("routing_key")):
        raise CallInvalid(
            "exchange", f"a call goes to a queue; name the queue of {name} in task_routes, or give queue=."
        )
    queue = explicit if explicit is not None else getattr(found, "name", found) or app.conf.task_default_queue
    if routed.get("exchange") or routed.get("exchange_type"):
        leave_exchange(routed, queue, app)
    return queue, {key: value for key, value in routed.items() if value is not None}


def leave_exchange(routed: dict[str, Any], queue: object, app: Celery) -> None:
    """Leave the exchange to the queue. Raises CallInvalid where another one is named."""
    exchange, kind = routed.pop("exchange", None), routed.pop("exchange_type", None)
    own = getattr(app.amqp.queues.get(queue), "exchange", None)
    if exchange and getattr(exchange, "name", exchange) != getattr(own, "name", None):
        remedy = "leave it out, or bind the queue to it in task_queues."
        raise CallInvalid("exchange", f"a call goes to its queue, {queue}, by the exchange of that queue; {remedy}")
    if kind and kind != getattr(own, "type", None):
        raise CallInvalid("exchange_type", f"is that of the exchange of the queue {queue}; leave it out.")


def _times(call: Call, options: dict[str, Any]) -> tuple[Call, timedelta | None, timedelta | None]:
    """Take countdown, eta and expires out of the options; what the sender gave as a field wins."""
    eta, countdown, expires = (options.pop(name, None) for name in ("eta", "countdown", "expires"))
    scheduled_in = expires_in = None
    if call.scheduled_at is None:
        if eta is not None and countdown is not None:
            raise CallInvalid("eta", "can't be given together with countdown; give one of them.")
        if countdown is not None:
            scheduled_in = _duration("countdown", countdown)
        elif eta is not None:
            call = replace(call, scheduled_at=validate.moment("eta", _parsed(eta)))
    if call.expires_at is None and expires is not None:
        if isinstance(expires, int | float):
            expires_in = _duration("expires", expires)
            is_over = expires_in <= max(scheduled_in or timedelta(0), timedelta(0))
            if is_over and not (call.extras and call.extras.is_celerys):
                raise CallInvalid("expires", f"{expires} s is not after the call's start, so it could never start.")
        else:
            call = replace(call, expires_at=validate.moment("expires", _parsed(expires)))
    return call, scheduled_in, expires_in


def _duration(field: str, seconds: object) -> timedelta:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise CallInvalid(field, f"{seconds!r} must be a number of seconds.")
    if abs(seconds) > _LONGEST.total_seconds():
        raise CallInvalid(field, f"{seconds} s is more than {_LONGEST.days // 365} years; give a shorter time.")
    return timedelta(seconds=seconds)


def _parsed(at: object) -> object:
    """Return a time that was given as ISO 8601 text as a datetime, as Celery does."""
    try:
        return datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return at
