"""The pool of a feed: which calls processes have, which wait for one, and which are taken back."""

from collections import deque
from collections.abc import Iterator
from threading import Barrier, Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub

from dispatcher.celery import feed_pool
from dispatcher.celery.feed_pool import Pool


class GivenRun:
    """A run as the pool uses it."""

    def __init__(self, name: str) -> None:
        self.name, self.given_at = name, 0.0
        self.ended_at: float | None = None
        self.start = SimpleNamespace(call=SimpleNamespace(task="t"))


class Worker:
    """A worker that notes what it is given: at once without an event loop, else in the loop's next turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, hub: Any = None) -> None:
        self.given: list[str] = []
        self.processes = SimpleNamespace(num_processes=size)
        consumer: Any = SimpleNamespace(
            app=None,
            pool=self.processes,
            controller=SimpleNamespace(autoscaler=None),
            on_task_message=set(),
            hub=hub,
            strategies={"t": lambda message, *_: self.given.append(message)},
        )
        self.controller = consumer.controller
        monkeypatch.setattr(feed_pool, "message_of", lambda _, run: run.name)
        monkeypatch.setattr(feed_pool.state, "active_requests", active := [])
        self.elsewhere: list[Any] = active
        self.pool = Pool(consumer)

    def give(self, *names: str) -> list[Any]:
        runs: list[Any] = [GivenRun(name) for name in names]
        for run in runs:
            self.pool.give(run)
        return runs


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Return a worker of two processes."""
    return Worker(monkeypatch, 2)


def test_each_process_has_one_call_and_the_next_and_an_end_makes_room_for_the_first_that_waits(worker: Worker) -> None:
    runs = worker.give(*"abcdefg")
    assert worker.given == [*"abcd"]
    for _ in range(2):
        worker.pool.free(runs[1])
        assert worker.given == [*"abcde"]
    runs[5].ended_at = 1.0
    worker.pool.free(runs[0])
    assert worker.given == [*"abcdeg"], "a call that ended while it waited is passed over"


def test_processes_that_run_messages_of_the_broker_are_left_out(worker: Worker) -> None:
    worker.elsewhere.append(SimpleNamespace(fed=None))
    worker.give(*"abcd")
    assert worker.given == [*"abc"]


@pytest.mark.parametrize(("size", "given"), [(1, ["abcd", "abcd", "abcde"]), (3, ["abcdefg", "abcdefgh"])])
def test_a_pool_that_shrinks_or_grows_is_filled_to_its_size_at_the_next_ends(
    worker: Worker, size: int, given: list[str]
) -> None:
    runs = worker.give(*"abcdefgh")
    worker.processes.num_processes = size
    for run, after in zip(runs, given, strict=False):
        worker.pool.free(run)
        assert worker.given == [*after]


def test_a_pool_that_scales_by_itself_takes_a_call_more_until_it_is_at_its_bound(worker: Worker) -> None:
    worker.controller.autoscaler = SimpleNamespace(max_concurrency=3)
    assert worker.pool.size == 3
    worker.processes.num_processes = 3
    assert worker.pool.size == 3


def test_calls_that_have_waited_for_long_are_taken_back(worker: Worker) -> None:
    runs = worker.give(*"abcdef")
    runs[4].given_at = 5.0
    assert worker.pool.oldest_at == 5.0
    assert worker.pool.take_back(6.0) == [runs[4]]
    assert worker.pool.oldest_at == runs[5].given_at
    worker.pool.free(runs[0])
    assert worker.given == [*"abcdf"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Return an event loop, as a worker has one that reads from Redis or AMQP."""
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def looping(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Worker:
    """Return a worker of two processes with an event loop."""
    return Worker(monkeypatch, 2, hub)


def test_an_event_loop_hands_over_in_its_next_turn_whichever_thread_gives(looping: Worker, hub: Hub) -> None:
    looping.give(*"ab")
    assert looping.given == []
    hub.run_once()
    thread = Thread(target=looping.give, args="cd")
    thread.start()
    thread.join()
    hub.run_once()
    assert looping.given == [*"abcd"]


class Meeting(deque[Any]):
    """Calls that two threads append before either of them goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = Barrier(2)

    def append(self, run: Any, /) -> None:
        super().append(run)
        self.barrier.wait(10)


def test_calls_that_two_threads_give_at_once_do_not_stay_behind(looping: Worker, hub: Hub) -> None:
    looping.pool._waiting = Meeting()  # noqa: SLF001 -- between its append and the next line a thread may stop
    threads = [Thread(target=looping.give, args=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hub.run_once()
    assert sorted(looping.given) == [*"ab"]


def test_a_call_is_handed_over_after_the_event_loop_broke_off(looping: Worker, hub: Hub) -> None:
    def break_off() -> None:
        raise ConnectionResetError

    # As AMQP's reader does. The loop forgets what it had for its next turn, in any order.
    for _ in range(50):
        hub.call_soon(break_off)
    looping.give("a")
    with pytest.raises(ConnectionResetError):
        hub.run_once()
    hub.reset()
    looping.pool.add_reader()
    looping.give("b")
    for _ in range(2):
        hub.run_once()
    assert looping.given == [*"ab"]


def test_a_call_that_a_timer_gives_is_handed_over_at_once(looping: Worker, hub: Hub) -> None:
    # As the next one of a process that a time limit has ended.
    runs: list[Any] = []
    hub.timer.call_after(0, lambda: runs.extend(looping.give("a")))
    while not looping.given:
        hub.run_once()
    assert monotonic() - runs[0].given_at < 0.5


def test_a_call_that_ends_as_it_is_handed_over_is_followed_by_the_next_and_not_interrupted(
    looping: Worker, hub: Hub
) -> None:
    runs = looping.give(*"abcdef")
    seen: list[str] = []

    def run_at_once(name: str, *_: Any) -> None:
        seen.append(f"{name} begins")
        looping.pool.free(runs["abcdef".index(name)])
        seen.append(f"{name} ends")

    looping.pool.consumer.strategies["t"] = run_at_once
    hub.run_once()
    assert seen == [f"{name} {what}" for name in "abcdef" for what in ("begins", "ends")]
