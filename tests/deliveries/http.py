"""What the verbs do for workers that fetch over HTTP."""

from collections.abc import Sequence

from dispatcher.ending import Reported
from dispatcher.errors import RateLimited
from dispatcher.ojs import fetch, pull_workers, worker_reports
from tests.drive import Drive, Run


class Http(Drive):
    """Workers fetch calls over HTTP."""

    delivery = "http"

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        for each in ends:
            self.end(each)
        if room < 1:
            return []
        calls = fetch.fetch(fetch.FetchRequest(queues=queues or [self.queue], worker=worker, count=room))
        return [
            Run(call=call.id, ticket=call.ticket, attempt=call.attempt, start_at=call.started_at, worker=worker)
            for call in calls
            if call.ticket is not None and call.started_at is not None
        ]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before = self.row(run)
        match error:
            case None:
                worker_reports.ack(run.call, result=result, ticket=run.ticket, worker=run.worker)
            case RateLimited():
                worker_reports.report_rate_limit(run.call, error.retry_after, key=error.key, ticket=run.ticket)
            case _:
                classes = [base.__name__ for base in type(error).__mro__]
                report = Reported(type=type(error).__name__, message=str(error), classes=classes)
                worker_reports.nack(run.call, report, ticket=run.ticket, worker=run.worker)
        return self.row(run).ticket != before.ticket

    def beat(self, *runs: Run, worker: str = "one") -> int:
        return len(pull_workers.heartbeat(worker, [each.call for each in runs]).kept)

    def give_back(self, run: Run) -> bool:
        before = self.row(run)
        worker_reports.requeue(run.call, ticket=run.ticket)
        return self.row(run).ticket != before.ticket
