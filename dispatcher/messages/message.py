"""The message of a dispatched call: what it is made of, and its way to the broker."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from inspect import signature as signature_of
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.task import Context
from celery.utils.saferepr import saferepr
from kombu.common import Broadcast

from dispatcher import validate
from dispatcher.messages import broker, signature
from dispatcher.messages.options import OF_CANVAS
from dispatcher.messages.tickets import CALL_HEADER, CHOSEN_HEADER, TICKET_HEADER, TIMES_HEADER

if TYPE_CHECKING:
    from dispatcher.models import CallQueue

_OF_THE_TASK: Final = frozenset(signature_of(AMQP.as_task_v2).parameters)
"""The options of a message that are headers of Celery's; the others are the broker's."""

_NAMES: Final = {"link": "callbacks", "link_error": "errbacks"}
"""The options that have another name in a message."""
_OF_PROPERTIES: Final = ("periodic_task_name",)
"""The properties that a worker reads, beside Celery's own and the priority."""
_DEFAULT_PRIORITY: Final = 0
"""That of kombu for a message without one."""

_templates: WeakKeyDictionary[Any, dict[str, tuple[dict[str, Any], dict[str, Any], Any]]] = WeakKeyDictionary()
"""Headers, properties and callbacks of a message as Celery makes them, by the app's `amqp` and the task."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A call that was taken: it has its slots and its ticket."""

    id: UUID
    ticket: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    call_data: dict[str, Any] | None
    headers: dict[str, Any] | None
    options: dict[str, Any] | None
    queue: str
    attempt: int
    chosen_keys: dict[str, str] | None = None
    """The key that was chosen of each group."""
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None


Publishable: TypeAlias = "Admitted | CallQueue"
"""What a message can be made of."""


def send(app: Celery, producer: Any, call: Publishable) -> None:
    """Hand one call to the broker, as `Celery.send_task` does, without looking up what is known already.

    The result backend is not notified: senders have no AsyncResult, and for each call it would listen for ever. Nor are
    the receivers of Celery's publish signals, which have seen the call at its send: see dispatcher.messages.capture.
    """
    of_task, of_broker = options_of(app, call)
    made = _celerys(app, call, of_task, has_event=app.conf.task_send_sent_event)
    queue = app.amqp.queues[call.queue]
    where = _where(app, queue, of_broker.pop("routing_key", None))
    mode = getattr(queue.exchange, "delivery_mode", None)
    defaults = {
        "serializer": "json",
        "compression": app.conf.task_compression,
        "delivery_mode": app.conf.task_default_delivery_mode if mode is None else mode,
    }
    declare = None if isinstance(queue, Broadcast) else [queue]
    bounds = {"timeout": broker.BOUND_S, "confirm_timeout": broker.BOUND_S}
    given = {**defaults, **made.properties, **of_broker, **bounds, **where}
    producer.publish(
        made.body, headers={**made.headers, **headers_of(app, call)}, declare=declare, retry=False, **given
    )
    if made.sent_event:
        where["exchange"] = getattr(where["exchange"], "name", where["exchange"])
        events = app.amqp._event_dispatcher  # noqa: SLF001 -- another one would have a connection of its own
        events.publish("task-sent", {**made.sent_event, **where, "queue": queue.name}, producer, retry=False)


def parts(app: Celery, call: Publishable) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the headers, the properties and the body of a call's message, for a worker that takes it directly."""
    if call.options:
        headers, properties, body = _made(app, call)
        return {**headers, **headers_of(app, call)}, properties, body
    templates = _templates.setdefault(app.amqp, {})
    if (template := templates.get(call.task)) is None:
        headers, properties, body = _made(app, call)
        template = templates[call.task] = headers, properties, body[2]
    headers, properties, callbacks = template
    given = arguments(call)
    args, kwargs, task_id, retries = given["args"] or (), given["kwargs"] or {}, given["task_id"], given["retries"]
    shown = {
        "argsrepr": saferepr(args, app.amqp.argsrepr_maxsize),
        "kwargsrepr": saferepr(kwargs, app.amqp.kwargsrepr_maxsize),
    }
    own = {"id": task_id, "root_id": task_id, "retries": retries, **shown}
    named = {**headers, **own, **headers_of(app, call)}
    return named, {**properties, "correlation_id": task_id}, (args, kwargs, callbacks)


def request(app: Celery, call: Publishable, hostname: str | None = None) -> dict[str, Any]:
    """Return the request of a call's message, as Celery's tracer and its result backend are given it."""
    headers, properties, (args, kwargs, callbacks) = parts(app, call)
    made = {
        **headers,
        **headers.get(TIMES_HEADER, {}),
        **(callbacks or {}),
        "args": args,
        "kwargs": kwargs,
        "hostname": hostname,
        "is_eager": False,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "delivery_info": {
            "exchange": "",
            "routing_key": call.queue,
            "priority": properties.get("priority"),
            "redelivered": False,
        },
    }
    # Those of the message, which a task may pass on: Celery takes all that it does not know for them.
    return {**made, "headers": Context(made).headers}


def _made(app: Celery, call: Publishable) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the headers, properties and body of a call's message, with the priority that a broker would give back."""
    of_task, of_broker = options_of(app, call)
    made = _celerys(app, call, of_task, has_event=False)
    named = {name: of_broker[name] for name in _OF_PROPERTIES if name in of_broker}
    properties = {**made.properties, **named, "priority": of_broker.get("priority", _DEFAULT_PRIORITY)}
    return made.headers, properties, made.body


def _celerys(app: Celery, call: Publishable, of_task: Mapping[str, Any], *, has_event: bool) -> Any:
    """Return the message as Celery makes it, without the headers of the call."""
    return app.amqp.create_task_message(
        **arguments(call),
        name=call.task,
        create_sent_event=has_event,
        # Not the task that happens to hand its room on.
        **{"root_id": str(call.id), "reply_to": app.thread_oid, **of_task},
    )


def _where(app: Celery, queue: Any, routing_key: str | None) -> dict[str, Any]:
    """Return the exchange and the routing key of a queue, as Celery does: a direct one is named by itself."""
    if getattr(queue.exchange, "type", "direct") == "direct":
        return {"exchange": "", "routing_key": queue.name}
    return {
        "exchange": queue.exchange.name or app.amqp.default_exchange,
        "routing_key": routing_key or queue.routing_key or app.conf.task_default_routing_key,
    }


def arguments(call: Publishable) -> dict[str, Any]:
    """Return what names the call to Celery: its arguments, id and number of retries."""
    return {
        "args": validate.from_json(call.args) if call.call_data is None else [call.call_data],
        "kwargs": validate.from_json(call.kwargs),
        "task_id": str(call.id),
        # A message that was retried before it became a call goes on counting.
        "retries": call.attempt + (call.options or {}).get("retries", 0),
    }


def headers_of(app: Celery, call: Publishable) -> dict[str, Any]:
    """Return the headers that the sender gave, and those by which a worker claims the call."""
    own: dict[str, Any] = {TICKET_HEADER: str(call.ticket), CALL_HEADER: str(call.id)}
    if call.chosen_keys:
        own[CHOSEN_HEADER] = call.chosen_keys
    times = {"eta": call.scheduled_at, "expires": call.expires_at}
    if given := {name: at.astimezone(app.timezone).isoformat() for name, at in times.items() if at is not None}:
        own[TIMES_HEADER] = given
    return {**(call.headers or {}), **own}


def options_of(app: Celery, call: Publishable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the message: those of the task, and those of the broker. What the sender stored wins."""
    options = {**signature.options_of(app.tasks.get(call.task)), **(call.options or {})}
    stamps = options.get("stamped_headers") or ()
    # Where neither sender nor task gives it, the worker's own task decides.
    of_task: dict[str, Any] = {"ignore_result": None}
    of_broker: dict[str, Any] = {}
    for option, value in options.items():
        name = _NAMES.get(option, option)
        if value is not None and name != "retries":
            is_of_task = name in _OF_THE_TASK or name in stamps
            (of_task if is_of_task else of_broker)[name] = validate.from_json(value) if option in OF_CANVAS else value
    return of_task, of_broker
