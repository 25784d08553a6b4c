"""What is measured of a worker, one of the dispatcher or one of Celery alone: end to end, a backlog, single starts."""

import time
from itertools import pairwise
from statistics import median

from bench.figures import each, wait_for
from bench.tasks import count_runs, forget_runs, runs


class Load:
    """What a worker is given."""

    def forget(self) -> None:
        """Begin without a run."""
        forget_runs()

    def send(self, task: str = "nothing") -> None:
        """Send a call."""
        raise NotImplementedError

    def send_at(self) -> float:
        """Send a call; return the Unix time from which on it could start."""
        began = time.time()
        self.send()
        return began

    def open_backlog(self, calls: int, task: str) -> float:
        """Let calls wait, and then have the worker take them; return the Unix time of that."""
        raise NotImplementedError

    def wait_ended(self, calls: int) -> float:
        """Wait until so many calls have ended; return the Unix time of the last end."""
        wait_for(count_runs, calls)
        return runs()[-1][1]

    def end_to_end(self, calls: int) -> float:
        """Return the calls per second from the first that is sent to the last end."""
        self.forget()
        began = time.time()
        for _ in range(calls):
            self.send()
        return calls / (self.wait_ended(calls) - began)

    def drain(self, calls: int, task: str = "nothing") -> float:
        """Return the calls per second from the moment at which a backlog may start to the last end."""
        self.forget()
        began = self.open_backlog(calls, task)
        return calls / (self.wait_ended(calls) - began)

    def hand_over(self, calls: int) -> float:
        """Return the median milliseconds from the end of a call to the start of the next, with a backlog."""
        self.drain(calls)
        return 1_000 * median(began - ended for (_, ended), (began, _) in pairwise(runs()))

    def sends(self, calls: int) -> float:
        """Return the median milliseconds of a send, while the worker runs what is sent."""
        self.forget()
        took = each(self.send, calls)
        self.wait_ended(calls)
        return took

    def start(self, calls: int) -> float:
        """Return the median milliseconds from a send to the start, while the worker is idle."""
        self.forget()
        sent = []
        for number in range(1, calls + 1):
            sent.append(self.send_at())
            wait_for(count_runs, number)
            time.sleep(0.01)
        return 1_000 * median(began - at for at, (began, _) in zip(sent, runs(), strict=True))
