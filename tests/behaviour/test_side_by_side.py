"""Workers side by side, on connections of their own: no limit is exceeded, and all room is used."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import TERMINAL
from tests.drive import Drive, Run
from tests.races.lockstep import actors

WORKERS = 8
TENANTS = 6


def send(drive: Drive, count: int, costs: Iterable[int] = (1,), key: str = "api") -> None:
    """Send calls of several tenants, so that workers meet at the key and not at one lane."""
    for number in range(TENANTS):
        drive.key(f"tenant:{number}")
    for number, cost in zip(range(TENANTS), itertools.cycle(costs)):
        drive.send_many(count // TENANTS, costs={key: cost, f"tenant:{number}": 1})


def work(drive: Drive, *, until: Callable[[], bool], seconds: float, room: int = 3, check: Callable[[], Any]) -> int:
    """Let eight workers end what they run and take more, at once, round by round; return the number of rounds."""
    runs: list[list[Run]] = [[] for _ in range(WORKERS)]
    drives = [drive.another() for _ in range(WORKERS)]
    rounds = 0
    with actors(WORKERS) as threads:
        while not until():
            taking = [
                thread.begin(each.take, room, ends=ended, worker=f"worker {number}")
                for number, (thread, each, ended) in enumerate(zip(threads, drives, runs, strict=True))
            ]
            runs = [each.result() for each in taking]
            check()
            drive.forward(seconds)
            rounds += 1
            assert rounds < 200
    return rounds


def is_done() -> bool:
    return not CallQueue.objects.exclude(state__in=TERMINAL).exists()


def test_eight_workers_never_exceed_a_concurrency(drive: Drive) -> None:
    drive.key(concurrency=7)
    send(drive, 60)
    uses: list[int] = []
    work(drive, until=is_done, seconds=0, check=lambda: uses.append(drive.use()))
    assert max(uses) == 7


def test_eight_workers_never_exceed_a_concurrency_in_cost(drive: Drive) -> None:
    drive.key(concurrency=7)
    send(drive, 48, costs=(1, 3, 2))
    uses: list[int] = []
    work(drive, until=is_done, seconds=0, check=lambda: uses.append(drive.use()))
    assert max(uses) in {6, 7}


def test_eight_workers_never_exceed_a_window(drive: Drive) -> None:
    """The audit holds that no window of 10 s has more than 12, wherever it begins."""
    drive.key(rate=(12, 10))
    send(drive, 48)
    work(drive, until=is_done, seconds=2.5, check=bool)


def test_eight_workers_never_come_closer_than_a_throttle_allows(drive: Drive) -> None:
    """The audit holds that no two starts are closer than a tenth of a second."""
    drive.key(throttle=(10, 1))
    send(drive, 36)
    work(drive, until=is_done, seconds=0.25, check=bool)


def test_eight_workers_keep_the_limits_of_all_keys_of_a_call_at_once(drive: Drive) -> None:
    drive.key("few", concurrency=4)
    drive.key("some", rate=(20, 10), concurrency=12)
    drive.key(f"queue:{drive.queue}", concurrency=9)
    for number, costs in enumerate(({"few": 1}, {"few": 2, "some": 1}, {"some": 2}, {"few": 1, "some": 1})):
        drive.send_many(10, costs=costs, priority=number % 2)
    uses: list[tuple[int, ...]] = []
    names = ("few", "some", f"queue:{drive.queue}")
    work(drive, until=is_done, seconds=2, check=lambda: uses.append(tuple(map(drive.use, names))))
    assert [max(of_key) for of_key in zip(*uses, strict=True)] <= [4, 12, 9]


def test_eight_workers_never_exceed_a_member_of_a_group(drive: Drive) -> None:
    for number in (1, 2, 3):
        drive.key(f"egress:{number}", concurrency=2)
    send(drive, 48, key=api.any_of("egress:*"))
    uses: list[int] = []
    work(
        drive,
        until=is_done,
        seconds=0,
        check=lambda: uses.append(max(drive.use(f"egress:{number}") for number in (1, 2, 3))),
    )
    assert max(uses) == 2


def test_workers_of_all_deliveries_share_one_key(drive: Drive) -> None:
    drive.key(concurrency=5)
    others = [drive, *(drive.beside(name) for name in ("direct", "broker", "http"))]
    for each in others:
        each.send_many(8, "api")
    runs: list[list[Run]] = [[] for _ in others]
    uses: list[int] = []
    with actors(len(others)) as threads:
        while not is_done():
            taking = [
                thread.begin(each.take, 3, ends=ended)
                for thread, each, ended in zip(threads, others, runs, strict=True)
            ]
            runs = [each.result() for each in taking]
            uses.append(drive.use())
            drive.forward(0.1)
            assert len(uses) < 100
    assert max(uses) == 5
