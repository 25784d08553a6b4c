"""What callers and workers do: send, claim, end, fetch; and single orders about calls and keys."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import transaction

from bench.figures import ensure
from bench.scale.compare import Operation, Task
from bench.scale.systems import System
from bench.scale.tasks import nothing
from dispatcher import api, ending
from dispatcher.conf import conf
from dispatcher.engine import ends
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.claim import Claimed
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue
from dispatcher.ojs import fetch, worker_reports
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.request import Call

MANY = 1_000
FETCHED = 10
LANES = 24
"""Tenants that a bulk goes to: as many as share a queue in the small system, and are idle, or busy."""
LATER = datetime(2100, 1, 1, tzinfo=UTC)
random_numbers = random.Random(1)  # noqa: S311 -- which tenant is taken is no secret


def idle(system: System) -> str:
    """Return the key of a tenant with room, in the queue that most share."""
    return f"tenant:{2 + 4 * random_numbers.randrange(system.size.tenants // 4)}"


def busy(system: System) -> str:
    """Return the key of a tenant whose calls wait, but not that of the one with most of them."""
    return f"tenant:{3 + 4 * random_numbers.randrange(system.size.tenants // 4 - 1)}"


def send(key: str, **options: object) -> CallQueue:
    """Send one call under a key, to the queue of its tenant."""
    return CallQueue.objects.send(nothing, keys=[key], queue="q00", **options)  # type: ignore[arg-type]


def sent(system: System, key: Callable[[System], str] = busy) -> list[UUID]:
    """Return a new call."""
    return [send(key(system)).id]


def sending() -> Iterator[Task]:
    """Yield the ways to send."""
    yield Operation("send alone, dispatched at once", prepare=idle, do=send)
    yield Operation("send alone, behind its tenant's backlog", prepare=busy, do=send)
    yield Operation(
        "send alone, to the tenant with half of all that waits", do=lambda _: send("tenant:1"), prepare=busy
    )
    yield Operation("send alone, for later", prepare=idle, do=lambda key: send(key, scheduled_at=LATER))
    yield Operation("send alone, for a tenant that is new", prepare=_new, do=_send_with_policy)
    yield Operation("send in atomic(), dispatched at its commit", prepare=idle, do=_send_in_atomic)
    yield Operation("send in atomic(), behind a backlog", prepare=busy, do=_send_in_atomic)
    yield Operation(
        f"send_many({MANY}) to one tenant with a backlog", prepare=_bulk(1, busy), do=CallQueue.objects.send_many
    )
    yield Operation(
        f"send_many({MANY}) to {LANES} with backlogs", prepare=_bulk(LANES, busy), do=CallQueue.objects.send_many
    )
    yield Operation(
        f"send_many({MANY}) to {LANES} with room", prepare=_bulk(LANES, idle), do=CallQueue.objects.send_many
    )


def running() -> Iterator[Task]:
    """Yield what a worker does."""
    yield Operation("claim", prepare=_dispatched, do=_claim)
    yield Operation("end", prepare=_claimed, do=_end)
    yield Operation("claim, and end without waiting calls", prepare=_dispatched, do=_run)
    yield Operation("claim, and end that dispatches the tenant's next call", prepare=_last_of_backlog, do=_run)
    yield Operation(f"fetch of {FETCHED} with a backlog", prepare=_give_back, do=_fetch)
    yield Operation("fetch and ack of one", prepare=_add_job, do=_fetch_and_ack)


def orders() -> Iterator[Task]:
    """Yield what people do to one call, or one key of a tenant."""
    yield Operation("cancel of one call that waits", prepare=sent, do=api.cancel)
    yield Operation("retry of one call that ended", prepare=_cancelled, do=api.retry)
    yield Operation("run_now of one call for later", prepare=_scheduled, do=api.run_now)
    yield Operation("declare of a new key", prepare=_new, do=lambda name: api.declare(name, {"concurrency": 1}))
    yield Operation("limit of a tenant's key", prepare=idle, do=lambda key: api.limit(key, {"concurrency": 90_000}))
    yield Operation("limit of a key with a backlog", prepare=busy, do=lambda key: api.limit(key, {"concurrency": 1}))
    yield Operation("override", prepare=busy, do=lambda key: api.override(key, until=LATER, concurrency=1))
    yield Operation("end_override", prepare=_overridden, do=api.end_override)
    yield Operation("pause", prepare=_resumed, do=api.pause)
    yield Operation("resume", prepare=_paused, do=api.resume)
    yield Operation("pause and resume of the largest queue", prepare=_queue_key, do=_pause_and_resume)
    yield Operation("block", prepare=idle, do=lambda key: api.block(key, timedelta(milliseconds=1)))


def _send_in_atomic(key: str) -> None:
    with transaction.atomic(using=conf().database):
        send(key)


def _send_with_policy(name: str) -> None:
    CallQueue.objects.send(nothing, queue="q00", rate_limit={"key": name, "concurrency": 5})


def _bulk(lanes: int, key: Callable[[System], str]) -> Callable[[System], list[Call]]:
    def prepare(system: System) -> list[Call]:
        found = set[str]()
        while len(found) < lanes:
            found.add(key(system))
        keys = sorted(found)
        return [Call(task=nothing, keys=[keys[number % lanes]], queue="q00") for number in range(MANY)]

    return prepare


def _new(system: System) -> str:
    return f"new:{system.alias}:{random_numbers.getrandbits(60)}"


def _dispatched(system: System) -> CallQueue:
    call = send(idle(system))
    call.refresh_from_db()
    return call


def _claimed(system: System) -> Ended:
    return _claim(_dispatched(system))


def _last_of_backlog(system: System) -> CallQueue:
    """Return the call that runs for a busy tenant, as one that its worker has yet to claim; another one waits."""
    key = busy(system)
    send(key)
    number = int(key.partition(":")[2])
    calls = CallQueue.objects.using(system.alias).filter(lane_id=number, state__in=("active", "dispatched"))
    call = calls.get()
    if call.state == "active":
        calls.update(state="dispatched", started_at=None, attempt=0)
    return call


def _run(call: CallQueue) -> None:
    _end(_claim(call))


def _claim(call: CallQueue) -> Ended:
    """Claim a call, and return how its attempt will have ended."""
    claimed = None if call.ticket is None else claim.claim(call.id, call.ticket)
    if call.ticket is None or not isinstance(claimed, Claimed):
        raise AssertionError(claimed)
    return Ended(call_id=call.id, ticket=call.ticket, claim_id=claimed.claim_id, ending=ending.completed(None))


def _end(ended: Ended) -> None:
    ensure(ends.record_one(ended), "the ticket was replaced")


_held: dict[str, list[UUID]] = {}
"""What the last fetch of a system has taken."""


def _give_back(system: System) -> System:
    for call in _held.pop(system.alias, []):
        worker_reports.requeue(call)
    return system


def _fetch(system: System) -> None:
    held = [call.id for call in fetch.fetch(FetchRequest(queues=["q23"], count=FETCHED))]
    _held[system.alias] = held
    ensure(len(held) == FETCHED, f"{len(held)} of {FETCHED} calls were fetched")


def _add_job(_: System) -> CallQueue:
    """Send one job more than the next one takes: the small system has few."""
    return CallQueue.objects.send("mail.send", keys=["tenant:92"], queue="q23")


def _fetch_and_ack(_: CallQueue) -> None:
    (call,) = fetch.fetch(FetchRequest(queues=["q23"]))
    worker_reports.ack(call.id, result=None)


def _cancelled(system: System) -> list[UUID]:
    return api.cancel(sent(system))


def _scheduled(system: System) -> list[UUID]:
    return [send(idle(system), scheduled_at=LATER).id]


def _overridden(system: System) -> str:
    key = busy(system)
    api.override(key, until=LATER, concurrency=1)
    return key


_last_paused: dict[str, str] = {}


def _resumed(system: System) -> str:
    """Return a busy key, after the one that was paused last has been resumed."""
    if system.alias in _last_paused:
        api.resume(_last_paused[system.alias])
    return _last_paused.setdefault(system.alias, busy(system))


def _paused(system: System) -> str:
    key = busy(system)
    api.pause(key)
    return key


def _queue_key(_: System) -> str:
    return api.declare("queue:q00", {}).name


def _pause_and_resume(key: str) -> None:
    api.pause(key)
    api.resume(key)
