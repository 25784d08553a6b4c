"""What the verbs do where Celery's workers run the calls."""

from uuid import UUID, uuid5

from dispatcher import engine
from dispatcher.ending import InFlight
from dispatcher.engine import workers
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import claim, heartbeat
from dispatcher.lifecycle.run import Outcome, Returned, raised
from tests.drive import Drive, Run

_WORKERS = UUID("8c1b7a52-93a6-4b13-8a51-0f9dd3c3a001")
"""The namespace of the ids of Celery's workers, which tests name."""


class Celery(Drive):
    """Celery's workers run the calls."""

    def beat(self, *runs: Run, worker: str = "one") -> int:
        return sum(1 for each in runs if heartbeat.record(self._worker(worker), [(each.call, each.ticket)]).slots)

    def come(self, worker: str = "one") -> None:
        """Send a heartbeat of a worker that holds no calls; if it is new, or back, its queue goes on."""
        workers.record_heartbeat(self._worker(worker), [])

    def stop(self, *, worker: str = "one") -> None:
        """Let a worker accept no more calls; it holds none that it has not started."""
        workers.stop_accepting(worker_id(self.site + worker), [])

    def lose(self, run: Run, *, is_crash: bool = True) -> bool:
        """Report that the process that ran a call has died; return whether the call was still its own."""
        lost = InFlight(call_id=run.call, ticket=run.ticket)
        return engine.lose([lost], WorkerLost("the process was killed"), is_crash=is_crash) > 0

    def _worker(self, name: str) -> heartbeat.WorkerInfo:
        who = {"id": worker_id(self.site + name), "name": name, "host": "here", "pid": 1, "pool": "prefork"}
        return heartbeat.WorkerInfo(**who, processes=2, queues=[self.queue])


def worker_id(name: str) -> UUID:
    """Return the id of a worker."""
    return uuid5(_WORKERS, name)


def outcome_of(result: object, error: BaseException | None) -> Outcome:
    """Return how a task ended that returned this, or raised that."""
    return Returned(result=result) if error is None else raised(error)


def run_of(call: UUID, ticket: UUID, claimed: claim.Claimed, worker: str, *, handle: object) -> Run:
    """Return the run of a call that was claimed."""
    at, attempt = claimed.start_at, claimed.attempt
    return Run(call=call, ticket=ticket, attempt=attempt, start_at=at, worker=worker, handle=handle)
