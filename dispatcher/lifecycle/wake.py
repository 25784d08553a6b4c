"""Wake: which workers with a feed are idle, and how one of them learns that a call may start.

The channel of a worker is for itself alone; without LISTEN (behind a transaction pooler) the worker polls.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import feed_silence


@dataclass(frozen=True, kw_only=True)
class _Woken:
    worker_id: UUID
    sent: str | None


@dataclass(frozen=True, kw_only=True)
class _Direct:
    name: str
    weight: int


def channel(worker: UUID) -> str:
    """Return the name of the channel on which a worker is notified."""
    return f"dispatcher_{worker.hex}"


def mark(worker: UUID, queues: Sequence[str], *, is_idle: bool) -> None:
    """Note that this worker serves these queues, and whether it has free processes for them, and waits.

    Who sent a call before the mark was committed has not woken the worker: it looks once more.
    """
    sql.change("mark_feed", {"worker": worker, "queues": list(queues), "is_idle": is_idle})


def delete(worker: UUID) -> None:
    """Forget the feed of this worker, and those of workers that have stopped or are lost."""
    sql.change("delete_feed", {"worker": worker})


def notify(queues: Collection[str]) -> list[UUID]:
    """Wake one idle worker for each of these queues, after the caller's commit; return which were woken.

    One that could serve a lane which the queue holds: not one that has reached its limit of a key of each.
    """
    return [row.worker_id for row in _ask_to_wake(queues).rows()] if queues else []


def _ask_to_wake(queues: Collection[str]) -> sql.Asked[_Woken]:
    return sql.ask("wake_feeds", _Woken, {"queues": sorted(queues), "silence": feed_silence()})


def hold(lanes: Collection[int], *, notified: Collection[str] = ()) -> list[str]:
    """Let the queues of these lanes hold them, so that workers find them; wake an idle one of each queue `notified`.

    Returns the queue of each lane that was not held before.
    """
    with sql.one_trip() as commit:
        held = sql.ask("hold_lanes", str, {"lanes": list(lanes)})
        if notified:
            commit()
            _ask_to_wake(notified)
    return held.rows()


def ask_waiting() -> sql.Asked[str]:
    """Ask for the direct queues that hold lanes while a worker of theirs is idle. Expected: none."""
    return sql.ask("waiting_queues", str, {})


def direct(queues: Sequence[str]) -> dict[str, int]:
    """Return those of these queues whose calls Celery workers take directly, with their weights."""
    return {row.name: row.weight for row in sql.fetch("direct_queues", _Direct, {"queues": list(queues)})}
