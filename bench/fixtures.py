"""What the benchmarks play on: keys, lanes and calls in some state, and the worker that runs them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from celery import current_app
from django.test import override_settings

from bench import database
from bench.tasks import DONE, STARTED, notes
from dispatcher.lifecycle import publish
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import Lane, LaneSite, RateLimitKey
from dispatcher.states import State

QUEUE = "bench"
UNCLAIMED = 100_000
"""More calls than any benchmark dispatches without a worker."""


def clear(using: str = "default") -> None:
    """Start from nothing: no calls, no keys, no messages."""
    database.run("empty", using=using)
    forget_messages()
    notes().delete(DONE, STARTED)


def forget_messages() -> None:
    """Empty the queue at the broker."""
    with current_app.connection_for_write() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        connection.default_channel.queue_purge(QUEUE)


@contextmanager
def unpublished() -> Iterator[None]:
    """Dispatch only: the broker is not asked."""
    with mock.patch.object(publish, "publish", return_value=0):
        yield


@contextmanager
def on(alias: str) -> Iterator[None]:
    """Let the dispatcher use this one of the databases, where no worker claims what is dispatched."""
    given = {"database": alias, "queue_grace": None, "dispatch_ahead": UNCLAIMED, "delivery": {"*": "broker"}}
    with override_settings(DISPATCHER=given):
        yield


def make_keys(names: list[str], *, concurrency: int, using: str = "default") -> list[int]:
    """Make keys and return them."""
    keys = [RateLimitKey(name=name, concurrency=concurrency) for name in names]
    return [key.pk for key in RateLimitKey.objects.using(using).bulk_create(keys)]


def make_lanes(
    keys: list[list[int]],
    *,
    queue: str = QUEUE,
    priority: int = 0,
    parked_on: int | None = None,
    using: str = "default",
) -> list[int]:
    """Make one lane for each list of keys and return them."""
    lanes = [Lane(queue=queue, priority=priority, on_limit="wait", key_ids=ids) for ids in keys]
    made = [lane.pk for lane in Lane.objects.using(using).bulk_create(lanes, batch_size=5_000)]
    if parked_on is not None:
        LaneSite.objects.using(using).filter(lane_id__in=made).update(place=parked_on)
    return made


def let_wait(lanes: list[int], calls: int, *, costs: Sequence[int] | None = None, using: str = "default") -> None:
    """Let so many more calls wait in each of these lanes; those that slept are ready.

    costs: what each call spends of the keys of its lane, in their order; 1 of each by default.
    """
    params = {"lanes": lanes, "calls": calls, "costs": None if costs is None else [*costs]}
    database.run("fill_lanes", params, using=using)


def dispatch(most: int) -> int:
    """Dispatch up to so many calls in one trip; return how many."""
    return len(take(Taker(queues=[QUEUE], becomes=State.DISPATCHED), room=most).dispatched)


def end_all(*names: str, using: str = "default") -> None:
    """Complete all calls in flight under these keys, without handing their room on."""
    end([key.pk for key in RateLimitKey.objects.using(using).filter(name__in=names)], using=using)


def end(keys: list[int], *, most: int = 1_000_000, using: str = "default") -> None:
    """Complete up to so many calls in flight under these keys, without handing their room on."""
    database.run("end_calls", {"keys": keys, "most": most}, using=using)
