"""Publish: hand admitted calls to Celery, after the commit. What the broker refuses stays, and is tried again."""

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import local
from time import monotonic
from typing import Any, Final, Protocol
from uuid import UUID

from celery import Celery, current_app
from kombu.exceptions import OperationalError

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid

logger = logging.getLogger(__name__)

TICKET_HEADER = "dispatcher_ticket"
"""The message header that carries the ticket."""


class Publishable(Protocol):
    """What a message needs to know of an admitted call."""

    @property
    def id(self) -> UUID:
        """The call's id: the Celery task id."""

    @property
    def ticket(self) -> UUID | None:
        """What the worker must show to claim it."""

    @property
    def task(self) -> str:
        """The name of the Celery task."""

    @property
    def args(self) -> list[Any]:
        """The task's positional arguments."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """The task's keyword arguments."""

    @property
    def call_data(self) -> dict[str, Any] | None:
        """The method and its params, in place of arguments."""

    @property
    def queue(self) -> str:
        """The Celery queue."""

    @property
    def attempt(self) -> int:
        """How many attempts were made before."""


@dataclass(frozen=True, kw_only=True)
class Unpublished:
    """A call that was admitted and, as far as the row knows, never handed to the broker."""

    id: UUID
    ticket: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    call_data: dict[str, Any] | None
    queue: str
    attempt: int


class _Rest:
    """Until when this process leaves a broker alone that it could not reach, and a queue whose calls it refused."""

    until = 0.0
    queues: Final[dict[str, float]] = {}
    """A queue rests from what was refused before, not from new calls: it may have room again."""


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """What became of the calls that a broker was offered; those in neither were not offered."""

    taken: list[Publishable] = field(default_factory=list)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many calls of a queue were refused with an error."""


class _SomeRefused(Exception):
    """Leaves kombu's block as an error does, so that it connects anew: a Redis that lost its place refuses for ever."""


class _Eager(local):
    """Calls that wait for their turn where tasks run in the sender's own thread (`task_always_eager`)."""

    waiting: deque[Publishable] | None = None


_eager = _Eager()


def publish(calls: Sequence[Publishable], *, now: datetime | None = None) -> int:
    """Publish these calls and note it on their rows; return how many the broker took.

    A broker that can't be reached is an expected fault, and so is one that refuses a call: what it did not take stays
    unpublished, for a later pass.
    """
    if not calls or monotonic() < _Rest.until:
        return 0
    if current_app.conf.task_always_eager:
        _note(calls, now)
        _run_eagerly(current_app, calls)
        return len(calls)
    answers = _Answers()
    try:
        _offer(current_app, calls, answers)
    finally:
        # Whatever ends the pass: what was taken and not noted would be sent again and again.
        if answers.taken:
            _note(answers.taken, now)
    return len(answers.taken)


def unpublished(*, now: datetime | None = None) -> list[Unpublished]:
    """Return calls that a dead process or an absent broker left unpublished, with their leases renewed.

    Those that the broker refused come in their turn: after a pause, so that however many they are, others come between.
    """
    if monotonic() < _Rest.until:
        return []
    settings = conf()
    return sql.fetch(
        "unpublished_calls",
        Unpublished,
        {
            "now": now,
            "after": settings.publish_after,
            "resting": [queue for queue, until in _Rest.queues.copy().items() if monotonic() < until],
            "most": settings.batch,
            "lease": settings.dispatch_lease,
            "settle": 2 * settings.heartbeat,
        },
    )


def to_repeat(*, now: datetime | None = None) -> list[Unpublished]:
    """Return calls that may stand in a line at the broker or be lost with it, their leases renewed."""
    settings = conf()
    params = {"now": now, "most": settings.batch, "lease": settings.dispatch_lease}
    return sql.fetch("repeat_calls", Unpublished, params)


def route(task: object, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the name of a task and the queue that Celery routes it to. Raises CallInvalid."""
    name = getattr(task, "name", task)
    if not isinstance(name, str) or not name:
        raise CallInvalid("task", f"{task!r} must be a Celery task or its name, such as 'shop.tasks.charge'.")
    registered = current_app.tasks.get(name)
    given = {"queue": registered.queue} if getattr(registered, "queue", None) else {}
    routed = current_app.amqp.router.route(given, name, args or (), kwargs or {}, registered)
    return name, routed["queue"].name if "queue" in routed else current_app.conf.task_default_queue


def _note(calls: Sequence[Publishable], now: datetime | None) -> None:
    # In order of id, as a cancel locks them.
    calls = sorted(calls, key=lambda call: call.id)
    ids, tickets = [call.id for call in calls], [call.ticket for call in calls]
    with sql.together():
        sql.ask("publish_calls", object, {"calls": ids, "tickets": tickets, "now": now})


def _offer(app: Celery, calls: Sequence[Publishable], answers: _Answers) -> None:
    """Offer the calls to the broker one after the other, until it is away."""
    pause = conf().publish_pause
    away: tuple[type[BaseException], ...] = (OperationalError, OSError)
    try:
        with app.producer_or_acquire() as producer:
            # Each transport has errors of its own for a connection that breaks on the way. With Redis a KeyError counts
            # among them, which here means a queue that the settings do not name.
            away += tuple(kind for kind in producer.connection.connection_errors if kind is not KeyError)
            # One try: by itself, kombu would try for seconds while the sender waits.
            producer.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            for call in calls:
                _ask(app, producer, call, away, answers)
            if answers.refused:
                raise _SomeRefused  # noqa: TRY301 -- it has to leave the block
    except _SomeRefused:
        pass
    except Exception as fault:
        # A login that is denied has an error of its own with every broker.
        _Rest.until = monotonic() + pause.total_seconds()
        unknown = None if isinstance(fault, away) else fault
        logger.warning("the broker can't be reached; calls stay unpublished for %s: %s", pause, fault, exc_info=unknown)
    for (queue, error), count in answers.refused.items():
        _Rest.queues[queue] = monotonic() + pause.total_seconds()
        logger.warning("the broker refused %d calls of queue %s, which stay unpublished: %s", count, queue, error)


def _ask(
    app: Celery, producer: Any, call: Publishable, away: tuple[type[BaseException], ...], answers: _Answers
) -> None:
    """Offer one call, and note the answer; one that is refused must not stand in the way of those behind it."""
    try:
        _send(app, producer, call)
    except away:
        raise
    except Exception as refusal:  # noqa: BLE001 -- full, too large, not allowed: each broker has errors of its own
        answers.refused[call.queue, repr(refusal)] += 1
    else:
        answers.taken.append(call)


def _send(app: Celery, producer: Any, call: Publishable) -> None:
    """Hand one call to the broker, as `Celery.send_task` does, without looking up what is known already.

    The result backend is not told: senders have no AsyncResult, and for each call it would listen for ever.
    """
    sent = _message(call)
    task_id, headers = sent.pop("task_id"), sent.pop("headers")
    message = app.amqp.create_task_message(
        task_id,
        call.task,
        **sent,
        create_sent_event=app.conf.task_send_sent_event,
        # Not the task that happens to hand its room on.
        root_id=task_id,
        parent_id=task_id,
        reply_to=app.thread_oid,
    )
    app.amqp.send_task_message(
        producer, call.task, message, queue=call.queue, serializer="json", retry=False, headers=headers
    )


def _run_eagerly(app: Celery, calls: Sequence[Publishable]) -> None:
    """Run the calls one after the other; those that a finish lets in come after, not inside, the one that ends."""
    if _eager.waiting is not None:
        _eager.waiting.extend(calls)
        return
    _eager.waiting = deque(calls)
    try:
        while _eager.waiting:
            call = _eager.waiting.popleft()
            if call.task not in app.tasks:
                app.loader.import_default_modules()
            app.tasks[call.task].apply(**_message(call))
    finally:
        _eager.waiting = None


def _message(call: Publishable) -> dict[str, Any]:
    return {
        "args": call.args if call.call_data is None else [call.call_data],
        "kwargs": call.kwargs,
        "task_id": str(call.id),
        "retries": call.attempt,
        "headers": {TICKET_HEADER: str(call.ticket)},
    }
