"""The pool as a feed sees it: how many calls it has at once, which wait, and which go back; without any process."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.worker import state

from dispatcher.celery import feed_pool
from dispatcher.celery.feed_pool import Pool


class Run:
    """A call on its way, as far as the pool looks at it."""

    def __init__(self, name: str, task: str = "noop") -> None:
        self.name = name
        self.start = SimpleNamespace(call=SimpleNamespace(task=task))
        self.given_at = 0.0
        self.ended_at: float | None = None
        self.reported: list[object] = []

    def __repr__(self) -> str:
        return self.name

    def failed(self, error: Exception) -> Exception:
        return error

    def report(self, end: object) -> None:
        self.reported.append(end)


class Hub:
    """An event loop that reads when `turn` is called."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[..., None]] = {}

    def add_reader(self, descriptor: int, read: Callable[..., None]) -> None:
        self.readers[descriptor] = read

    def turn(self) -> None:
        for read in self.readers.values():
            read()


class Consumer:
    """A worker's consumer; `begun` are the calls that its processes have."""

    def __init__(self, *, processes: int | None, hub: Hub | None = None) -> None:
        self.begun: list[Run] = []
        self.app = None
        self.hub = hub
        self.pool = SimpleNamespace(num_processes=processes)
        self.controller = SimpleNamespace(concurrency=3, autoscaler=None)
        self.on_task_message: set[Callable[[Run], None]] = set()
        self.strategies: dict[str, Callable[..., Any]] = {"noop": self.begin}

    def begin(self, run: Run, *given: Any) -> None:
        self.begun.append(run)
        for callback in given[-1]:
            callback(run)


def pool_of(consumer: Consumer) -> Pool:
    return Pool(consumer)  # type: ignore[arg-type]


def give(pool: Pool, *runs: Run) -> None:
    for run in runs:
        pool.give(run)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the message of a run be the run."""
    monkeypatch.setattr(feed_pool, "message_of", lambda _, run: run)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Return Celery's active requests, which are the pool's to count."""
    requests: set[Any] = set()
    monkeypatch.setattr(state, "active_requests", requests)
    return requests


def request(*, fed: object = None) -> Any:
    return type("Request", (), {"fed": fed, "number": uuid4()})()


@pytest.fixture
def runs() -> list[Run]:
    return [Run(name) for name in "abcdef"]


@pytest.mark.parametrize(("processes", "size"), [(4, 4), (None, 3), (0, 3)])
def test_its_size_is_that_of_the_pool_and_else_the_workers_concurrency(processes: int | None, size: int) -> None:
    assert pool_of(Consumer(processes=processes)).size == size


def test_its_size_follows_a_pool_that_shrinks() -> None:
    consumer = Consumer(processes=4)
    pool = pool_of(consumer)
    consumer.pool.num_processes = 1
    assert pool.size == 1


def test_a_pool_that_scales_itself_is_as_large_as_it_may_become_and_looks_at_each_call(runs: list[Run]) -> None:
    consumer, seen = Consumer(processes=1), list[Run]()
    consumer.controller.autoscaler = SimpleNamespace(max_concurrency=2)
    consumer.on_task_message.add(seen.append)
    pool = pool_of(consumer)
    give(pool, *runs)
    assert pool.size == 2
    assert seen == consumer.begun == runs[:4]


def test_only_tasks_that_came_through_the_broker_are_busy_elsewhere(elsewhere: set[Any]) -> None:
    elsewhere.update([request(), request(), request(fed=object())])
    assert pool_of(Consumer(processes=4)).busy_elsewhere() == 2


def test_a_process_has_one_call_and_the_next_and_the_others_wait_in_order(runs: list[Run]) -> None:
    consumer = Consumer(processes=2)
    pool = pool_of(consumer)
    give(pool, *runs)
    assert consumer.begun == runs[:4]
    pool.free(runs[1])  # type: ignore[arg-type]
    assert consumer.begun == runs[:5]
    pool.free(runs[0])  # type: ignore[arg-type]
    assert consumer.begun == runs


def test_a_call_of_the_broker_takes_the_place_of_one_that_was_next(elsewhere: set[Any], runs: list[Run]) -> None:
    consumer = Consumer(processes=2)
    elsewhere.add(request())
    give(pool_of(consumer), *runs)
    assert consumer.begun == runs[:3]


def test_an_end_that_is_reported_twice_frees_one_place(runs: list[Run]) -> None:
    consumer = Consumer(processes=1)
    pool = pool_of(consumer)
    give(pool, *runs)
    for _ in range(2):
        pool.free(runs[0])  # type: ignore[arg-type]
    assert consumer.begun == runs[:3]


def test_a_call_that_ended_while_it_waited_is_passed_over(runs: list[Run]) -> None:
    consumer = Consumer(processes=1)
    pool = pool_of(consumer)
    give(pool, *runs)
    runs[2].ended_at = 1.0
    pool.free(runs[2])  # type: ignore[arg-type]
    assert consumer.begun == runs[:2], "it had no place"
    pool.free(runs[0])  # type: ignore[arg-type]
    assert consumer.begun == [*runs[:2], runs[3]]


def test_calls_that_wait_too_long_are_taken_back_and_never_begin(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10, 90, 10))
    monkeypatch.setattr(feed_pool, "monotonic", lambda: float(next(now)))
    consumer = Consumer(processes=1)
    pool = pool_of(consumer)
    give(pool, *runs)
    assert pool.oldest_at == 30.0, "two have a process"
    assert pool.take_back(30.0) == []
    assert pool.take_back(50.0) == runs[2:4]
    assert pool.oldest_at == 50.0
    pool.free(runs[0])  # type: ignore[arg-type]
    assert consumer.begun == [*runs[:2], runs[4]]
    assert pool.take_back(100.0) == runs[5:]
    assert pool.oldest_at is None


def test_a_worker_with_an_event_loop_begins_calls_in_it(runs: list[Run]) -> None:
    hub = Hub()
    consumer = Consumer(processes=2, hub=hub)
    give(pool_of(consumer), *runs[:3])
    assert consumer.begun == []
    hub.turn()
    assert consumer.begun == runs[:3]


def test_calls_that_were_given_while_the_broker_was_away_begin_once_the_loop_reads_again(runs: list[Run]) -> None:
    hub = Hub()
    consumer = Consumer(processes=2, hub=hub)
    pool = pool_of(consumer)
    hub.readers.clear()
    give(pool, *runs[:3])
    hub.turn()
    assert consumer.begun == []
    pool.add_reader()
    hub.turn()
    assert consumer.begun == runs[:3]


def test_more_calls_than_the_pipe_takes_notices_of_all_begin() -> None:
    hub = Hub()
    consumer = Consumer(processes=50_000, hub=hub)
    runs = [Run(str(number)) for number in range(70_000)]
    give(pool_of(consumer), *runs)
    hub.turn()
    assert consumer.begun == runs


def test_a_call_whose_message_the_pool_refuses_ends_and_stops_no_other(runs: list[Run]) -> None:
    consumer = Consumer(processes=2)
    strange = Run("strange", task="unknown")
    give(pool_of(consumer), strange, *runs[:2])
    assert [type(end) for end in strange.reported] == [KeyError]
    assert consumer.begun == runs[:2]
