"""Wake: which processes of workers are idle, and how one of them learns that a call may start.

The channel of a worker is for itself alone; without LISTEN (behind a transaction pooler) the worker polls.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import is_eager, process_silence
from dispatcher.models import Queue
from dispatcher.states import Delivery


@dataclass(frozen=True, kw_only=True)
class Woken:
    """A queue that calls wait in; `sent`: a worker of it was notified."""

    queue: str
    is_published: bool
    sent: str | None


def channel(process: UUID) -> str:
    """Return the name of the channel on which a process is notified."""
    return f"dispatcher_{process.hex}"


def serve(process: UUID, worker: UUID, queues: Sequence[str]) -> None:
    """Note that this process of a worker takes calls of these queues; a trip marks it as idle."""
    sql.change("mark_process", {"process": process, "worker": worker, "queues": list(queues)})


def unmark(process: UUID) -> None:
    """Note that this process is not idle any more."""
    sql.change("unmark_process", {"process": process})


def delete(processes: Collection[UUID]) -> None:
    """Delete the marks of these processes, and those of workers that have stopped or are lost."""
    sql.change("delete_process", {"processes": list(processes)})


def ask(*, calls: Collection[UUID] = (), queues: Collection[str] = ()) -> sql.Asked[Woken]:
    """Wake one idle worker of each queue in which these calls wait, and of each of these queues.

    After the commit of the calls, in a transaction of its own. calls: of each lane the first one.
    """
    params = {"calls": list(calls), "queues": list(queues), "silence": process_silence(), "is_eager": is_eager()}
    return sql.ask("wake_workers", Woken, params)


def ready_queues() -> list[str]:
    """Return the queues with ready lanes whose calls workers take by themselves."""
    return sql.fetch("ready_queues", str, {"deliveries": ["direct", "http"]})


def direct(queues: Sequence[str]) -> dict[str, int]:
    """Return those of these queues whose calls Celery workers take directly, with their weights."""
    found = Queue.objects.filter(name__in=queues, delivery=Delivery.DIRECT)
    weights = dict(found.values_list("name", "weight"))
    return {queue: weights[queue] for queue in queues if queue in weights}


def published(queues: Sequence[str]) -> list[str]:
    """Return those of these queues whose calls the broker delivers."""
    others = set(Queue.objects.filter(name__in=queues).exclude(delivery=Delivery.BROKER).values_list("name", flat=True))
    return [queue for queue in queues if queue not in others]
