"""What the verbs do where calls are published: messages are taken from the broker, and claimed."""

from collections.abc import Sequence
from uuid import UUID, uuid4

from dispatcher.ending import InFlight
from dispatcher.engine import attempt, ends
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.finish import Requeue
from tests.clock import Clock
from tests.deliveries.celery import Celery, outcome_of, run_of, worker_id
from tests.drive import Run
from tests.races.lockstep import Mailbox


class Broker(Celery):
    """Calls are published through Celery's broker, and claimed by workers."""

    delivery = "broker"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.mailbox = Mailbox(queue)

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        for each in ends:
            self.end(each)
        taken: list[Run] = []
        for mailbox in [self.mailbox] if queues is None else map(Mailbox, queues):
            while len(taken) < room and (message := mailbox.take()) is not None:
                claimed = self.claim(*message, worker=worker)
                taken += [] if claimed is None else [claimed]
        return taken

    def claim(self, call: UUID, ticket: UUID, *, worker: str = "one") -> Run | None:
        """Start the call of a message; None if it may not start (any more): then it waits again, or has ended."""
        who = {"claim_id": uuid4(), "worker": worker_id(self.site + worker)}
        claimed = claim.claim(call, ticket, **who)
        this = attempt.Attempt(call, ticket, **who)
        if isinstance(claimed, claim.Refused):
            this.refuse(claimed)
            return None
        return run_of(call, ticket, claimed, worker, handle=(this, claimed))

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        this, claimed = run.handle
        # A report that comes twice comes from two processes.
        again = attempt.Attempt(this.call_id, this.ticket, claim_id=this.claim_id, worker=this.worker)
        return again.record(outcome_of(result, error), claimed) is not None

    def give_back(self, run: Run) -> bool:
        held = InFlight(call_id=run.call, ticket=run.ticket, claim=run.handle[1].claim_id)
        return bool(ends.requeue([held], Requeue.UNUSED))
