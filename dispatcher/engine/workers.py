"""Workers: record their heartbeats, and put back their calls when they stop."""

from collections.abc import Sequence
from uuid import UUID

from dispatcher import engine, lanes
from dispatcher.conf import conf
from dispatcher.ending import InFlight
from dispatcher.engine import attempt, dispenser, ends, recovery
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import heartbeat, schedule, wake
from dispatcher.lifecycle.finish import Requeue
from dispatcher.messages import broker


def record_heartbeat(worker: heartbeat.WorkerInfo, held: Sequence[heartbeat.ReservedCall]) -> dict[str, int]:
    """Record a heartbeat for a worker and the calls that it holds; dispense its queues if it is new or back.

    Return which of its queues are direct, with their weights.
    """
    result = heartbeat.record(worker, held)
    if result.is_back:
        for queue in set(worker.queues) - {conf().dispenser_queue}:
            lanes.open_queue(queue)
        engine.dispense_briefly(queues=set(worker.queues).intersection(dispenser.ready_queues()))
    # Calls that came back go on, now that a worker of these queues knows their tasks.
    if result.knows_more and worker.tasks and schedule.wake_returned(worker.queues, worker.tasks):
        engine.dispense_briefly()
    return direct_queues(worker.queues)


def published_queues(queues: Sequence[str]) -> list[str]:
    """Return those of these queues whose calls the broker delivers; never the dispenser's.

    None where what this process publishes reaches no other.
    """
    own = [queue for queue in queues if queue != conf().dispenser_queue]
    return wake.published(own) if broker.reaches_workers() else []


def direct_queues(queues: Sequence[str]) -> dict[str, int]:
    """Return those of these queues whose calls Celery workers take directly, with weights; never the dispenser's."""
    return wake.direct([queue for queue in queues if queue != conf().dispenser_queue])


def return_unknown(call: UUID, ticket: UUID) -> bool:
    """Put back a call whose task its worker does not know; return whether the ticket still held it.

    No attempt is spent. The call waits for a worker that knows the task, and is tried again after a while without one.
    """
    return bool(ends.requeue([InFlight(call_id=call, ticket=ticket)], Requeue.UNKNOWN))


def stop_accepting(worker: UUID, held: Sequence[heartbeat.ReservedCall]) -> int:
    """Mark a worker as stopped, and put back the calls that it holds and has not started; return how many."""
    heartbeat.mark_stopped(worker)
    return len(ends.requeue([InFlight(call_id=call, ticket=ticket) for call, ticket in held], Requeue.UNDELIVERED))


def release_all(worker: UUID) -> int:
    """Put back all calls of a worker that has ended; return how many. Calls that it had started count as lost.

    An attempt that another worker claimed meanwhile goes on. A greenlet or thread of this process that outlives the
    shutdown keeps its slots until it ends or its lease expires.
    """
    ended, running = WorkerLost("its worker was shut down"), attempt.running()
    held = [each for each in heartbeat.held(worker) if each.claim not in running]
    requeued = ends.requeue([each for each in held if each.claim is None], Requeue.UNDELIVERED)
    return len(requeued) + recovery.lose([each for each in held if each.claim is not None], ended, is_crash=False)
