"""Publish: hand dispatched calls to Celery, after the commit. What the broker refuses stays, and is tried again."""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from threading import local
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from celery import Celery, current_app
from celery.exceptions import Retry
from django.apps import apps
from kombu.exceptions import OperationalError

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid
from dispatcher.messages import broker, message
from dispatcher.messages.message import Admitted, Publishable

if TYPE_CHECKING:
    from dispatcher.apps import DispatcherConfig

logger = logging.getLogger(__name__)


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

    @property
    def count(self) -> int:
        """How many calls were answered."""
        return len(self.taken) + self.refused.total()


class _SomeRefused(Exception):
    """Leaves kombu's block as an error does, so that it reconnects: a demoted Redis would refuse for ever."""


class _Eager(local):
    """Calls that wait for their turn where tasks run in the sender's own thread (`task_always_eager`)."""

    waiting: deque[Publishable] | None = None
    is_held = False
    """Whether what tasks raise waits for the end of `eager_errors_last`."""
    error: Exception | None = None
    """The first that was raised meanwhile."""


_eager = _Eager()


def publish(calls: Sequence[Publishable], *, now: datetime | None = None) -> int:
    """Publish these calls and note it on their rows; return how many the broker took.

    A broker that can't be reached is an expected fault, and so is one that refuses a call: what it did not take stays
    unpublished, for a later tick.
    """
    if not calls or monotonic() < _Rest.until or not broker.reaches_workers():
        return 0
    if current_app.conf.task_always_eager:
        _note(calls, now)
        with eager_errors_last():
            _run_eagerly(current_app, calls)
        return len(calls)
    answers = _Answers()
    try:
        _offer(current_app, calls, answers)
    finally:
        # Whatever ends it: what was taken and not noted would be sent again and again.
        if answers.taken:
            _note(answers.taken, now)
    return len(answers.taken)


@contextmanager
def eager_errors_last() -> Iterator[None]:
    """Raise what eager tasks raise (`task_eager_propagates`) at the end, the first of it, and do all else before."""
    if _eager.is_held:
        yield
        return
    _eager.is_held, _eager.error = True, None
    try:
        yield
    finally:
        _eager.is_held = False
    if (error := _eager.error) is not None:
        _eager.error = None
        raise error


def unpublished(*, now: datetime | None = None) -> list[Admitted]:
    """Return calls that a dead process or an absent broker left unpublished, with their leases renewed.

    Those that the broker refused come in their turn: after a pause, so that however many they are, others come between.
    """
    if monotonic() < _Rest.until:
        return []
    settings = conf()
    return sql.fetch(
        "unpublished_calls",
        Admitted,
        {
            "now": now,
            "after": settings.publish_after,
            "resting": [queue for queue, until in _Rest.queues.copy().items() if monotonic() < until],
            "most": settings.batch,
            "lease": settings.dispatch_lease,
            "after_restart": 2 * settings.heartbeat,
        },
    )


def to_repeat(*, now: datetime | None = None, until: datetime | None = None) -> list[Admitted]:
    """Return calls that may stand in a line at the broker or be lost with it, their leases renewed.

    until: their leases were over by then; by default now.
    """
    settings = conf()
    params = {"now": now, "until": until, "most": settings.batch, "lease": settings.dispatch_lease}
    return sql.fetch("repeat_calls", Admitted, params)


def _note(calls: Sequence[Publishable], now: datetime | None) -> None:
    ids, tickets = [call.id for call in calls], [call.ticket for call in calls]
    with sql.together():
        sql.ask("publish_calls", object, {"calls": ids, "tickets": tickets, "now": now})


def _offer(app: Celery, calls: Sequence[Publishable], answers: _Answers) -> None:
    """Offer the calls to the broker one after the other, until it is away."""
    pause = conf().publish_pause
    away: tuple[type[BaseException], ...] = (OperationalError, OSError)
    try:
        with broker.bounded_producers(app).acquire(block=True, timeout=broker.BOUND_S) as producer:
            # Each transport has errors of its own for a connection that breaks on the way. With Redis a KeyError counts
            # among them, which here means a queue that the settings do not name.
            away += tuple(kind for kind in producer.connection.connection_errors if kind is not KeyError)
            try:
                _offer_on(app, producer, calls, away, answers)
            except BaseException as fault:
                if isinstance(fault, away) or sql.is_interruption(fault):
                    # Without a farewell: half a message may be sent, or nothing be answered.
                    producer.connection.collect()
                raise
            if answers.refused:
                raise _SomeRefused  # noqa: TRY301 -- it has to leave the block
    except _SomeRefused:
        pass
    except Exception as fault:
        if sql.is_interruption(fault):
            raise
        # A login that is denied has an error of its own with every broker.
        _Rest.until = monotonic() + pause.total_seconds()
        unknown = None if isinstance(fault, away) else fault
        logger.warning("the broker can't be reached; calls stay unpublished for %s: %s", pause, fault, exc_info=unknown)
    for (queue, error), count in answers.refused.items():
        _Rest.queues[queue] = monotonic() + pause.total_seconds()
        logger.warning("the broker refused %d calls of queue %s, which stay unpublished: %s", count, queue, error)


def _offer_on(
    app: Celery, producer: Any, calls: Sequence[Publishable], away: tuple[type[BaseException], ...], answers: _Answers
) -> None:
    """Offer the calls on this producer; a kept connection that turns out to be broken is replaced once.

    It breaks when the broker restarts, when a network drops idle connections, and when this process forks: kombu closes
    what the child inherits, and with AMQP that shuts the socket of both.
    """
    is_kept = producer.connection.connected
    try:
        broker.connect(producer.connection)
        for call in calls:
            # One that is refused must not stand in the way of those behind it.
            try:
                message.send(app, producer, call)
            except Exception as refusal:
                # Full, too large, not allowed: each broker has errors of its own.
                if isinstance(refusal, away) or sql.is_interruption(refusal):
                    raise
                answers.refused[call.queue, repr(refusal)] += 1
            else:
                answers.taken.append(call)
    except away as fault:
        if not is_kept or broker.is_timeout(fault):
            raise
        broker.renew(producer)
        _offer_on(app, producer, calls[answers.count :], away, answers)


def _run_eagerly(app: Celery, calls: Sequence[Publishable]) -> None:
    """Run the calls one after the other; those that an end lets go come after, not inside, the one that ends."""
    if _eager.waiting is not None:
        _eager.waiting.extend(calls)
        return
    _eager.waiting = deque(calls)
    try:
        while _eager.waiting:
            call = _eager.waiting.popleft()
            if call.task not in app.tasks:
                app.loader.import_default_modules()
            of_task, of_broker = message.options_of(app, call)
            given = {**message.arguments(call), **of_task, **of_broker, "headers": message.headers_of(app, call)}
            fence(call.task)
            try:
                app.tasks[call.task].apply(**given)
            except Exception as error:  # noqa: BLE001 -- the task's own; it is raised when all that may run has run
                # A call that is tried again ends its message with Celery's Retry; its task raised the cause.
                cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
                _eager.error = _eager.error or cause
    finally:
        _eager.waiting = None


def fence(name: str) -> None:
    """Let a task that is registered here claim its calls. Raises CallInvalid if its class can't."""
    task = current_app.tasks.get(name)
    if task is None:
        return
    try:
        cast("DispatcherConfig", apps.get_app_config("dispatcher")).fence(task)
    except TypeError as error:
        raise CallInvalid("task", f"its calls would never be claimed: {error}.") from error
