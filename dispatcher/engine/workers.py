"""Workers: record their heartbeats, and put back their calls when they stop."""

from collections.abc import Sequence
from uuid import UUID

from dispatcher import engine, lanes, sql
from dispatcher.conf import conf
from dispatcher.engine import attempt, lost
from dispatcher.engine.dispenser import REFILL
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import finish, heartbeat, recover, unstarted, wake
from dispatcher.states import State


def record_heartbeat(worker: heartbeat.WorkerInfo, held: Sequence[heartbeat.ReservedCall]) -> dict[str, int]:
    """Record a heartbeat for a worker and the calls that it holds; dispense its queues if it is new or back.

    Return which of its queues are direct, with their weights.
    """
    result = heartbeat.record(worker, held)
    if result.is_back:
        for queue in set(worker.queues) - {conf().dispenser_queue}:
            sql.change("open_queue", {"name": queue, "delivery": lanes.declared_delivery(queue)})
        engine.dispense_briefly(queues=worker.queues, most=REFILL, total=REFILL)
    if result.knows_more and worker.tasks:
        _wake(worker.queues, worker.tasks)
    return direct_queues(worker.queues)


def direct_queues(queues: Sequence[str]) -> dict[str, int]:
    """Return those of these queues whose calls Celery workers take directly, with weights; never the dispenser's."""
    return wake.direct([queue for queue in queues if queue != conf().dispenser_queue])


def return_unknown(call: UUID, ticket: UUID) -> bool:
    """Put back a call whose task its worker does not know; return whether the ticket still held it.

    No attempt is spent. The call waits for a worker that knows the task, and is tried again after a while without one.
    """
    with sql.atomic():
        returned = unstarted.put_back(call, ticket, is_unknown=True)
    if returned is None:
        return False
    if not returned.is_known:
        # A worker that knows the task may have registered before this was committed.
        _wake([returned.queue], [returned.task])
    engine.dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
    return True


def _wake(queues: Sequence[str], tasks: Sequence[str]) -> None:
    """Dispense calls that came back, now that a worker of these queues knows their tasks."""
    if woken := unstarted.wake(queues, tasks):
        recover.wake(woken)
        engine.dispense_briefly(lanes=woken, most=REFILL, total=REFILL)


def stop_accepting(worker: UUID, held: Sequence[heartbeat.ReservedCall]) -> int:
    """Mark a worker as stopped, and put back the calls that it holds and has not started; return how many."""
    heartbeat.mark_stopped(worker)
    with sql.atomic():
        found = [finish.put_back(call, ticket, from_states=[State.DISPATCHED]) for call, ticket in sorted(held)]
        attempt.wake(found)
    return engine.serve(found)


def release_all(worker: UUID) -> int:
    """Put back all calls of a worker that has ended; return how many. Calls that it had started count as lost.

    An attempt that another worker claimed meanwhile goes on. A greenlet or thread of this process that outlives the
    shutdown keeps its slots until it ends or its lease expires.
    """
    ended = WorkerLost("its worker was shut down")
    still_running = attempt.running()
    with sql.atomic():
        found = [
            lost.put_back(each.call_id, each.ticket, ended, is_crash=False, claim_id=each.claim)
            if each.claim is not None
            else finish.put_back(each.call_id, each.ticket, from_states=[State.DISPATCHED])
            for each in heartbeat.held(worker)
            if each.claim not in still_running
        ]
        attempt.wake(found)
    return engine.serve(found)
