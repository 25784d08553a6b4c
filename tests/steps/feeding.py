"""Steps of direct workers in the tests: what they send, take and end."""

from typing import Any
from uuid import UUID

from dispatcher import ending
from dispatcher.engine import feed
from dispatcher.engine.feed import Start, Step, Taker
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue
from dispatcher.request import Call
from tests.builders import HERE

TAKER = Taker(worker=HERE.id, queues=["mail"], tasks=["noop"])
"""The worker `HERE`, of the queue that the fixture `direct` makes."""


def send(count: int = 1, *, queue: str = "mail", **fields: Any) -> list[CallQueue]:
    """Send so many calls at once."""
    return CallQueue.objects.send_many([Call(task="noop", queue=queue, **fields) for _ in range(count)])


def take(room: int = 1, *ended: Start, taker: Taker = TAKER, **options: Any) -> Step:
    """Make one step of a worker: these calls have completed, and it has room for so many."""
    return feed.step(taker, [done(start) for start in ended], room=room, **options)


def done(start: Start) -> Ended:
    """Return the end of a call that has completed."""
    return start.ended(ending.completed(1))


def ids(step: Step) -> list[UUID]:
    """Return the calls that a step has started, in order."""
    return [start.call.id for start in step.starts]
