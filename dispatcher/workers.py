"""What workers say of themselves: that they live, that they take no more, that they have ended."""

from collections.abc import Sequence
from uuid import UUID

from dispatcher import attempt, engine, sql
from dispatcher.engine import REFILL
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import finish, heartbeat
from dispatcher.states import State


def beat(here: heartbeat.Here, held: Sequence[heartbeat.Held]) -> None:
    """Say that a worker lives and still holds these calls; if it has just come, or come back, serve its queues."""
    if heartbeat.beat(here, held).is_back:
        engine.dispense(queues=here.queues, most=REFILL, total=REFILL)


def leave(worker: UUID, held: Sequence[heartbeat.Held]) -> int:
    """Say that a worker takes no more messages, and put back what it holds and has not started; return how many."""
    heartbeat.stop(worker)
    with sql.atomic():
        found = [finish.put_back(call, ticket, from_states=[State.DISPATCHED]) for call, ticket in sorted(held)]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    engine.serve(put_back)
    return len(put_back)


def part(worker: UUID) -> int:
    """Put back whatever a worker that has ended still held; return how many calls. What it had started, it has lost."""
    ended = WorkerLost("its worker was shut down")
    with sql.atomic():
        found = [attempt.lost(call, ticket, ended, is_crash=False) for call, ticket in heartbeat.held(worker)]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    engine.serve(put_back)
    return len(put_back)
