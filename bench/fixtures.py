"""What the benchmarks need: keys, lanes and calls in some state."""

from collections.abc import Sequence

from celery import current_app

from bench import database
from bench.tasks import forget_runs
from dispatcher.models import Lane, LaneSite, RateLimitKey

QUEUE = "bench"


def clear() -> None:
    """Start from nothing: no calls, no keys, no messages."""
    database.run("empty")
    forget_messages()
    forget_runs()


def forget_messages() -> None:
    """Empty the queue at the broker."""
    with current_app.connection_for_write() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        connection.default_channel.queue_purge(QUEUE)


def make_keys(names: list[str], *, concurrency: int) -> list[int]:
    """Make keys and return them."""
    keys = [RateLimitKey(name=name, concurrency=concurrency) for name in names]
    return [key.pk for key in RateLimitKey.objects.bulk_create(keys)]


def make_lanes(
    keys: list[list[int]],
    *,
    queue: str = QUEUE,
    priority: int = 0,
    parked_on: int | None = None,
) -> list[int]:
    """Make one lane for each list of keys and return them."""
    lanes = [Lane(queue=queue, priority=priority, on_limit="wait", key_ids=ids) for ids in keys]
    made = [lane.pk for lane in Lane.objects.bulk_create(lanes, batch_size=5_000)]
    if parked_on is not None:
        LaneSite.objects.filter(lane_id__in=made).update(place=parked_on)
    return made


def let_wait(lanes: list[int], calls: int, *, costs: Sequence[int] | None = None) -> None:
    """Let so many more calls wait in each of these lanes; those that slept are ready.

    costs: what each call spends of the keys of its lane, in their order; 1 of each by default.
    """
    params = {"lanes": lanes, "calls": calls, "costs": None if costs is None else [*costs]}
    database.run("fill_lanes", params)
