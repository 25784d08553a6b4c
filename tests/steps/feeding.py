"""Steps of direct workers in the tests: what they send and take."""

from typing import Any

from dispatcher.engine import direct
from dispatcher.lifecycle.take import Taken, Taker
from dispatcher.models import CallQueue
from dispatcher.request import Call
from tests.builders import HERE

TAKER = Taker(worker=HERE.id, queues=["mail"], tasks=["noop"])
"""The worker `HERE`, of the queue that the fixture `direct` makes."""


def send(count: int = 1, *, queue: str = "mail", **fields: Any) -> list[CallQueue]:
    """Send so many calls at once."""
    return CallQueue.objects.send_many([Call(task="noop", queue=queue, **fields) for _ in range(count)])


def take(room: int = 1) -> Taken:
    """Make one step of a worker that has room for so many."""
    return direct.step(TAKER, room=room)
