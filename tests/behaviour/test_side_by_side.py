"""Workers side by side, on connections of their own: no limit is ever exceeded, and every call ends."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import pytest

from dispatcher.api import any_of
from dispatcher.models import CallQueue
from dispatcher.states import TERMINAL
from tests.drive import Drive, Run
from tests.races.lockstep import actors, at_once

WORKERS = 8
ROUNDS = 150
TENANTS = 6


def send(drive: Drive, count: int, costs: Sequence[int] = (1,), key: str = "api") -> None:
    """Send calls of several tenants, so that workers meet at the key and not at one lane."""
    for number, cost in zip(range(TENANTS), cycle(costs), strict=False):
        tenant = drive.key(f"tenant:{number}").name
        drive.send_many(count // TENANTS, costs={key: cost, tenant: 1})


def work(*drives: Drive, seconds: float = 0.025, room: int = 2, use: Callable[[], int] = lambda: 0) -> int:
    """Let workers end what they run and take more, all at once, round by round; return what was in use at the most.

    Each ends one call a round, so that the others hold what they have while it takes the next ones. seconds: that pass
    with a round; what a worker finds locked by another, it looks at again 20 ms later.
    """
    runs: list[list[Run]] = [[] for _ in drives]
    most = 0
    with actors(len(drives)) as threads:
        for _ in range(ROUNDS):
            taking = [
                thread.begin(drive.take, max(1, room - len(held)), ends=held[:1], worker=f"worker {number}")
                for number, (thread, drive, held) in enumerate(zip(threads, drives, runs, strict=True))
            ]
            runs = [held[1:] + each.result() for held, each in zip(runs, taking, strict=True)]
            most = max(most, use())
            drives[0].forward(seconds)
            if not CallQueue.objects.exclude(state__in=TERMINAL).exists():
                return most
    message = f"calls are left after {ROUNDS} rounds"
    raise AssertionError(message)


def eight(drive: Drive) -> list[Drive]:
    return [drive, *(drive.another() for _ in range(WORKERS - 1))]


def test_eight_workers_never_exceed_a_concurrency(drive: Drive) -> None:
    drive.key(concurrency=7)
    send(drive, 42)
    assert work(*eight(drive), use=drive.use) <= 7


def test_eight_workers_never_exceed_a_concurrency_in_cost(drive: Drive) -> None:
    drive.key(concurrency=7)
    send(drive, 30, costs=(1, 3, 2))
    assert work(*eight(drive), use=drive.use) <= 7


def test_eight_workers_never_exceed_a_window(drive: Drive) -> None:
    """The audit holds that no window of 10 s has more than 12, wherever it begins."""
    drive.key(rate=(12, 10))
    send(drive, 36)
    work(*eight(drive), seconds=2.5)


def test_eight_workers_never_come_closer_than_a_throttle_allows(drive: Drive) -> None:
    """The audit holds that no two starts are closer than a tenth of a second."""
    drive.key(throttle=(10, 1))
    send(drive, 24)
    work(*eight(drive), seconds=0.35)


def test_eight_senders_never_exceed_a_concurrency(drive: Drive) -> None:
    drive.key(concurrency=3)
    for _ in range(6):
        at_once(*(partial(each.send, "api") for each in eight(drive)))
        assert drive.use() <= 3
        assert len(drive.drain(8)) == 8


def test_eight_workers_keep_the_limits_of_all_keys_of_a_call_at_once(drive: Drive) -> None:
    limits = {"few": 4, "some": 12, f"queue:{drive.queue}": 9}
    for name, concurrency in limits.items():
        drive.key(name, concurrency=concurrency, rate=(20, 10) if name == "some" else None)
    for number, costs in enumerate(({"few": 1}, {"few": 2, "some": 1}, {"some": 2}, {"few": 1, "some": 1})):
        drive.send_many(8, costs=costs, priority=number % 2)
    over = work(*eight(drive), seconds=2, use=lambda: max(drive.use(name) - limit for name, limit in limits.items()))
    assert over == 0


def test_eight_workers_never_exceed_a_member_of_a_group(drive: Drive) -> None:
    members = [drive.key(f"egress:{number}", concurrency=2).name for number in (1, 2, 3)]
    send(drive, 30, key=any_of("egress:*"))
    assert work(*eight(drive), use=lambda: max(map(drive.use, members))) <= 2


@pytest.mark.ojs
def test_workers_of_all_deliveries_never_exceed_a_key_that_they_share(drive: Drive) -> None:
    drive.key(concurrency=3)
    drives = [drive, *(drive.beside(name) for name in ("direct", "broker", "http"))]
    for each in drives:
        each.send_many(6, "api")
    assert work(*drives, seconds=0.1, use=drive.use) <= 3
