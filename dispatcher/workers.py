"""What workers say of themselves: that they live, that they take no more, that they have ended."""

from collections.abc import Sequence
from uuid import UUID

from dispatcher import attempt, engine, sql
from dispatcher.dispenser import REFILL
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import finish, heartbeat, recover, unstarted
from dispatcher.states import State


def record_heartbeat(worker: heartbeat.WorkerInfo, held: Sequence[heartbeat.ReservedCall]) -> None:
    """Say that a worker lives and still holds these calls; if it has just come, or come back, serve its queues."""
    result = heartbeat.record(worker, held)
    if result.is_back:
        engine.dispense_briefly(queues=worker.queues, most=REFILL, total=REFILL)
    if result.knows_more and worker.tasks:
        _wake(worker.queues, worker.tasks)


def return_unknown(call: UUID, ticket: UUID) -> bool:
    """Put a call back whose task its worker does not know; return whether the ticket still held it.

    No attempt is spent. It waits until a worker that knows the task comes, or tries the others a little later.
    """
    with sql.atomic():
        returned = unstarted.put_back(call, ticket, is_unknown=True)
    if returned is None:
        return False
    if not returned.is_known:
        # A worker that knows it may have come meanwhile, and looked before this was committed.
        _wake([returned.queue], [returned.task])
    engine.dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
    return True


def _wake(queues: Sequence[str], tasks: Sequence[str]) -> None:
    """Let the calls go on that came back, now that a worker of these queues knows their tasks."""
    if lanes := unstarted.wake(queues, tasks):
        recover.wake(lanes)
        engine.dispense_briefly(lanes=lanes, most=REFILL, total=REFILL)


def stop_accepting(worker: UUID, held: Sequence[heartbeat.ReservedCall]) -> int:
    """Say that a worker takes no more messages, and put back what it holds and has not started; return how many."""
    heartbeat.mark_stopped(worker)
    with sql.atomic():
        found = [finish.put_back(call, ticket, from_states=[State.DISPATCHED]) for call, ticket in sorted(held)]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    engine.serve(put_back)
    return len(put_back)


def release_all(worker: UUID) -> int:
    """Put back what a worker that has ended still held; return how many calls. What it had started, it has lost.

    Only what it holds itself: an attempt that another worker claimed meanwhile goes on. And only what has ended: a
    greenlet or thread of this process that outlives the shutdown keeps its slots, until it ends or its lease does.
    """
    ended = WorkerLost("its worker was shut down")
    still_running = attempt.running()
    with sql.atomic():
        found = [
            attempt.lost(each.call_id, each.ticket, ended, is_crash=False, number=each.claim)
            if each.claim is not None
            else finish.put_back(each.call_id, each.ticket, from_states=[State.DISPATCHED])
            for each in heartbeat.held(worker)
            if each.claim not in still_running
        ]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    engine.serve(put_back)
    return len(put_back)
