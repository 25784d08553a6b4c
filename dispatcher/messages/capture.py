"""What a sender's context adds to a message: receivers of Celery's publish signals, and instrumentation.

A call is published later, often by another process in the middle of other work. So the message is also made at the
send, by Celery's own `send_task` and for no broker, and what was added to it is kept with the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final
from uuid import UUID

from celery import current_app, signals
from celery.app import base
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer

from dispatcher.conf import is_eager
from dispatcher.errors import CallInvalid
from dispatcher.messages.signature import protocol

_NAMES: Final = ("before_task_publish", "after_task_publish", "task_sent")
_SIGNALS: Final = [getattr(signals, name) for name in _NAMES if hasattr(signals, name)]
HOOKED: Final = "dispatcher_hooked"
"""The attribute of the dispatcher's hook over `send_task`: itself, since wrappers copy it, and what it wraps."""
_NOWHERE: Final = Connection("memory://")
"""Never opened."""
_OF_A_PUBLICATION: Final = frozenset(
    {
        "compression",
        "confirm_timeout",
        "correlation_id",
        "declare",
        "delivery_mode",
        "exchange",
        "expiration",
        "headers",
        "reply_to",
        "retry",
        "retry_policy",
        "routing_key",
        "serializer",
        "timeout",
    }
)
"""What Celery gives `Producer.publish` by itself; instrumentation may hide its signature."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A message as it left the sender: its arguments, headers beside Celery's own, and properties that were added."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    headers: Mapping[str, Any]
    options: Mapping[str, Any]


class Recorder(Producer):
    """A producer that keeps the first message that it is given, and sends none."""

    published: tuple[Any, dict[str, Any]] | None = None

    def publish(self, body: Any, **options: Any) -> None:  # type: ignore[override]  # Celery names all options.
        """Keep a message; those that follow are events about it."""
        self.published = self.published or (body, options)


def is_needed() -> bool:
    """Return whether anything in this process may add to a message."""
    send_task = current_app.send_task
    # Its type, since a wrapper may pass for what it wraps in all else.
    function = send_task.__func__ if type(send_task) is MethodType else None
    hook, hooked = getattr(function, HOOKED, (None, None))
    function = hooked if hook is function else function
    is_celerys = type(function) is FunctionType and function.__globals__ is vars(base)
    return (not is_celerys or any(signal.receivers for signal in _SIGNALS)) and not is_eager()


def capture(
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    task_id: UUID,
    queue: str,
    headers: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Captured:
    """Make the message of a call as Celery does in the sender, and return what was added on the way.

    The signals before_task_publish and after_task_publish are sent here, and not when the broker gets the message: they
    are the sender's. Raises CallInvalid if the app's send_task publishes by a producer of its own.
    """
    app = current_app
    recorder = Recorder(_NOWHERE, auto_declare=False)  # type: ignore[no-untyped-call]
    app.send_task(
        task,
        list(args),
        dict(kwargs),
        task_id=str(task_id),
        producer=recorder,
        queue=app.amqp.queues.get(queue) or Queue(queue),
        headers=dict(headers),
        task_type=app.tasks.get(task),
        add_to_parent=False,
        # The result backend would listen for the result as long as this process lives.
        **{**options, "ignore_result": True},
    )
    if recorder.published is None:
        raise CallInvalid("task", "send_task of the Celery app must publish by the producer that it is given.")
    body, published = recorder.published
    made = (body["args"], body["kwargs"]) if isinstance(body, dict) else body[:2]
    found = published["headers"]
    plain, *_ = app.amqp.create_task_message(str(task_id), task, *made)
    changed = {
        name: found[name]
        for name in ("argsrepr", "kwargsrepr", "shadow")
        if found.get(name) is not None and found[name] != plain.get(name)
    }
    added = {name: value for name, value in published.items() if name not in _OF_A_PUBLICATION and value is not None}
    return Captured(
        args=made[0],
        kwargs=made[1],
        headers={name: value for name, value in found.items() if name not in protocol()},
        options={**options, **added, **changed},
    )
