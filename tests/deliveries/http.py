"""What the verbs do for workers that fetch over HTTP."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from dispatcher import sql
from dispatcher.ending import Reported
from dispatcher.errors import RateLimited
from dispatcher.models import CallQueue
from dispatcher.ojs import fetch, pull_workers, worker_reports
from tests.clock import Clock
from tests.drive import Drive, Run


class Http(Drive):
    """Workers fetch calls over HTTP."""

    delivery = "http"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.marks: dict[str | None, UUID] = {}
        """The marks of workers whose last fetch waits, since it found less than they have room for."""

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        for each in ends:
            self.end(each)
        if room < 1:
            return []
        served = queues or [self.queue]
        calls = self._fetch(fetch.FetchRequest(queues=served, worker=worker and self.site + worker, count=room))
        return [
            Run(call=call.id, ticket=call.ticket, attempt=call.attempt, start_at=call.started_at, worker=worker)
            for call in calls
            if call.ticket is not None and call.started_at is not None
        ]

    def _fetch(self, request: fetch.FetchRequest) -> list[CallQueue]:
        """Fetch as a request does that waits; with a mark until the next one, where it finds too little."""
        if (mark := self.marks.pop(request.worker, None)) is not None:
            sql.fetch("delete_mark", bool, {"mark": mark})
        calls = fetch.fetch(request)
        if len(calls) < request.count:
            self.marks[request.worker] = uuid4()
            sql.fetch("mark_waiting", timedelta, {"mark": self.marks[request.worker], "queues": list(request.queues)})
        return calls

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before = self.ticket(run)
        match error:
            case None:
                worker_reports.ack(run.call, result=result, ticket=run.ticket, worker=self.site + run.worker)
            case RateLimited():
                worker_reports.report_rate_limit(run.call, error.retry_after, key=error.key, ticket=run.ticket)
            case _:
                classes = [base.__name__ for base in type(error).__mro__]
                report = Reported(type=type(error).__name__, message=str(error), classes=classes)
                worker_reports.nack(run.call, report, ticket=run.ticket, worker=self.site + run.worker)
        return self.ticket(run) != before

    def beat(self, *runs: Run, worker: str = "one") -> int:
        return len(pull_workers.heartbeat(self.site + worker, [each.call for each in runs]).kept)

    def give_back(self, run: Run) -> bool:
        before = self.ticket(run)
        worker_reports.requeue(run.call, ticket=run.ticket)
        return self.ticket(run) != before
