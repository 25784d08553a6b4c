"""The dispatcher under load: a worker, what it is given, and what that costs the database."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice

from django.db import transaction
from django.db.models import Max

from bench import database, fixtures
from bench.figures import wait_for
from bench.load import Load
from bench.tasks import count_runs, nothing, runs, wait
from dispatcher import api
from dispatcher.models import CallQueue, Queue
from dispatcher.request import Call
from dispatcher.states import Delivery
from project.processes import Stack

Keys = Sequence[str] | Mapping[str, int]
AMPLE = 1_000_000
STATISTICS_S = 1.5
"""How long until the server's statistics have what a busy session did."""


@contextmanager
def worker(
    stack: Stack,
    delivery: Delivery = Delivery.DIRECT,
    *,
    concurrency: int = 2,
    beside: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Have one worker of the queue, through the broker with beat and a dispenser; yield its process.

    beside: queues of the broker that it serves, too. env: what its environment has more.
    """
    fixtures.clear()
    Queue.objects.update_or_create(name=fixtures.QUEUE, defaults={"delivery": delivery})
    child = stack.start_worker(queues=[fixtures.QUEUE, *beside], concurrency=concurrency, env=env)
    if delivery is Delivery.BROKER:
        stack.start_dispenser()
        stack.start_beat()
    stack.wait_ready()
    CallQueue.objects.send(nothing)
    wait_for(count_ended, 1)
    yield child.pid
    for name in ("worker", "dispenser", "beat"):
        if name in stack.children:
            stack.stop(name)
    Queue.objects.filter(name=fixtures.QUEUE).delete()


class Calls(Load):
    """Calls of the dispatcher, which spend these keys in turn; all have the first one of the first call."""

    def __init__(self, *keys: Keys) -> None:
        self._keys = keys or [()]

    def forget(self) -> None:
        """Begin without a call."""
        super().forget()
        CallQueue.objects.all().delete()

    def send(self, task: str = "nothing") -> None:
        """Send a call."""
        CallQueue.objects.send(f"bench.tasks.{task}", keys=self._keys[0])

    def send_at(self) -> float:
        """Send a call; return the Unix time of its commit."""
        sent: list[float] = []
        with transaction.atomic():
            # Before the hook of `send`, which wakes the worker.
            transaction.on_commit(lambda: sent.append(time.time()))
            self.send()
        return sent[0]

    def open_backlog(self, calls: int, task: str) -> float:
        """Let calls wait behind a paused key; return the Unix time at which it is resumed."""
        gate = next(iter(self._keys[0]))
        api.pause(gate)
        name = f"bench.tasks.{task}"
        CallQueue.objects.send_many(Call(task=name, keys=keys) for keys in islice(cycle(self._keys), calls))
        began = time.time()
        api.resume(gate)
        return began

    def wait_ended(self, calls: int) -> float:
        """Wait until so many calls have run and ended; return when the last one did."""
        # The database is not asked while they run.
        super().wait_ended(calls)
        wait_for(count_ended, calls)
        ended: float = CallQueue.objects.aggregate(at=Max("finished_at"))["at"].timestamp()
        return ended


def alternate(queue: str, count: int, seconds: float) -> float:
    """Return the seconds from the first start to the last end of so many messages of a queue, and as many calls."""
    Calls().forget()
    for _ in range(count):
        wait.apply_async(kwargs={"seconds": seconds}, queue=queue)
        CallQueue.objects.send(wait, kwargs={"seconds": seconds})
    wait_for(count_runs, 2 * count)
    wait_for(count_ended, count)
    ran = runs()
    return max(ended_at for _, ended_at in ran) - ran[0][0]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a call cost the database, the trips of all processes together."""

    transactions: float
    cpu_ms: float
    dead_rows: float
    wal_kb: float


def cost(load: Callable[[], object], calls: int) -> Cost:
    """Return what each of so many calls cost: what the server counts while they are sent, run and ended."""
    before = _spent()
    load()
    after = _spent()
    cpu = sum(spent - before[1].get(pid, 0) for pid, spent in after[1].items())
    transactions, dead_rows, wal = ((now - then) / calls for now, then in zip(after[0], before[0], strict=True))
    return Cost(transactions=transactions, cpu_ms=cpu / calls, dead_rows=dead_rows, wal_kb=wal / 1_000)


def _spent() -> tuple[list[float], dict[int, float]]:
    """Return what the database's statistics have, and the milliseconds of CPU of each of its sessions."""
    time.sleep(STATISTICS_S)
    database.execute("SELECT 1")  # after it the server has the statistics of what this session did before
    (counted,) = database.run("spent")
    return [float(each) for each in counted], {pid: database.cpu_ms(pid) for pid in database.sessions()}


def count_ended() -> int:
    """Return how many calls have ended."""
    return CallQueue.objects.filter(finished_at__isnull=False).count()
