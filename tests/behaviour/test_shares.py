"""Shares: under a key that says fair_by, calls that wait take turns by tenant, not by call and not by lane.

Each tenant gets starts, counted by cost, in proportion to its weight, however finely its calls are cut. One that has
nothing waiting saves up nothing; when it comes back it is next. Priorities stay strict above that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product
from typing import Any
from uuid import UUID

import pytest

from dispatcher import api
from dispatcher.errors import PolicyInvalid
from dispatcher.models import CallQueue, RateLimitKey, Share
from tests.drive import TASK, Drive, Run

MOMENT = 0.01
WORKERS = 4

LIMITS: Mapping[str, Mapping[str, Any]] = {
    "concurrency": {"concurrency": 6},
    "rate": {"rate": (6, 1)},
    "throttle": {"throttle": (20, 1)},
}


def cut(drive: Drive, tenant: str, lanes: int, count: int, **fields: Any) -> dict[UUID, str]:
    """Send calls of a tenant, each with a further key, of so many; return them with the tenant."""
    found: dict[UUID, str] = {}
    for n in range(lanes):
        topic = drive.key(f"topic.{tenant[-1]}.{n}").name
        found |= {call.id: tenant for call in drive.send_many(-(-count // lanes), "api", tenant, topic, **fields)}
    return found


def drain(
    drives: Sequence[Drive], owner: Mapping[UUID, str], most: int, room: int = 1, moment: float = MOMENT
) -> list[str]:
    """Let one process of each queue take and end calls; return the owners of the first starts."""
    running: list[Sequence[Run]] = [[] for _ in drives]
    order: list[str] = []
    idle = 0
    while len(order) < most and idle < 100:
        began = len(order)
        for n, drive in enumerate(drives):
            drive.clock.forward(moment)
            running[n] = drive.take(room, ends=running[n])
            order += [owner[run.call] for run in running[n]]
        idle = 0 if len(order) > began else idle + 1
    for drive, runs in zip(drives, running, strict=True):
        for run in runs:
            drive.end(run)
    return order[:most]


def furthest(order: Iterable[str], weights: Mapping[str, int], costs: Sequence[int] | None = None) -> float:
    """Return how far two tenants were apart at the most, in cost by weight."""
    got = dict.fromkeys(weights, 0.0)
    worst = 0.0
    for n, tenant in enumerate(order):
        got[tenant] += (costs[n] if costs else 1) / weights[tenant]
        worst = max(worst, max(got.values()) - min(got.values()))
    return worst


def longest(order: Sequence[str]) -> int:
    """Return how often the same tenant had its turn one after the other at the most."""
    return max(len(list(group)) for _, group in groupby(order))


@pytest.fixture
def tenants(drive: Drive) -> list[str]:
    """Return the keys of two tenants."""
    return [drive.key(name).name for name in ("tenant:a", "tenant:b")]


@pytest.mark.parametrize(("few", "room"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_a_tenant_gets_no_more_turns_for_more_lanes(drive: Drive, tenants: list[str], few: int, room: int) -> None:
    drive.key(concurrency=room, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 20, 60) | cut(drive, "tenant:b", few, 50)
    order = drain([drive], owner, 80, room)
    assert abs(Counter(order)["tenant:a"] - 40) <= room / 2
    assert furthest(order, dict.fromkeys(tenants, 1)) <= room


@pytest.mark.parametrize("other", ["direct", "broker", "http"])
def test_a_tenant_gets_no_more_turns_for_lanes_in_two_queues(drive: Drive, tenants: list[str], other: str) -> None:
    beside = drive.beside(other)
    drive.key(concurrency=1, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 10, 40) | cut(beside, "tenant:a", 10, 40)
    owner |= cut(drive, "tenant:b", 1, 40) | cut(beside, "tenant:b", 1, 40)
    order = drain([drive, beside], owner, 80)
    assert abs(Counter(order[20:])["tenant:a"] - 30) <= 2
    assert furthest(order[20:], dict.fromkeys(tenants, 1)) <= 3


@pytest.mark.parametrize(
    ("limit", "room"),
    [
        *(("concurrency", 1), ("rate", 4), ("throttle", 4)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("concurrency", 4), ("rate", 1), ("throttle", 1))),
    ],
)
def test_turns_go_by_weight_and_cost(drive: Drive, limit: str, room: int) -> None:
    weights = {"tenant:a": 3, "tenant:b": 1}
    drive.key(**LIMITS[limit], fair_by="tenant:*")
    for name, weight in weights.items():
        drive.key(name, weight=weight)
    cost: dict[UUID, int] = {}
    owner: dict[UUID, str] = {}
    for name, lanes, count in (("tenant:a", 6, 3), ("tenant:b", 2, 5)):
        for n, spent in product(range(lanes), [1, 2, 3, 4, 5]):
            topic = drive.key(f"topic.{name[-1]}.{n}").name
            for call in drive.send_many(count, costs={"api": spent, name: 1, topic: 1}):
                cost[call.id], owner[call.id] = spent, name
    running: list[list[Run]] = [[] for _ in range(WORKERS)]
    got: Counter[str] = Counter()
    apart = 0.0
    for _ in range(120):
        if got.total() >= 240:
            break
        drive.forward(0.5 if limit in {"rate", "throttle"} else MOMENT)
        for n in range(WORKERS):
            running[n] = drive.take(room, ends=running[n], worker=f"w{n}")
            for run in running[n]:
                got[owner[run.call]] += cost[run.call]
                apart = max(apart, abs(got["tenant:a"] / 3 - got["tenant:b"]))
    assert got.total() >= 180
    assert abs(got["tenant:a"] / got.total() - 0.75) < 0.03
    assert apart <= 10


@pytest.mark.deliveries("direct", "http")  # What the broker delivers was dispatched before others waited.
def test_turns_go_by_weight_where_processes_are_short(drive: Drive) -> None:
    weights = {"tenant:a": 3, "tenant:b": 1}
    drive.key(concurrency=100, fair_by="tenant:*")
    for name, weight in weights.items():
        drive.key(name, weight=weight)
    order = drain([drive], cut(drive, "tenant:a", 6, 90) | cut(drive, "tenant:b", 2, 50), 80)
    assert Counter(order) == {"tenant:a": 60, "tenant:b": 20}
    assert furthest(order, weights) <= 1


@pytest.mark.deliveries("direct", "http")
def test_calls_without_the_key_go_on_beside_shares(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=100, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 2, 60) | cut(drive, "tenant:b", 2, 60)
    owner |= {call.id: "none" for call in drive.send_many(60)}
    order = drain([drive], owner, 100)
    assert abs(Counter(order)["none"] - 20) <= 2


@pytest.mark.deliveries("direct")  # A worker of the broker's or over HTTP holds nothing that it did not ask for.
def test_a_share_for_which_room_was_kept_in_vain_has_its_turns_when_its_worker_comes(
    drive: Drive, tenants: list[str]
) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    beside = drive.beside("direct")
    beside.send_many(40)
    owner = cut(beside, "tenant:b", 1, 20) | cut(drive, "tenant:a", 10, 600)
    mine, theirs = drive.take(), beside.take(2)  # It looks at the other's lane, too, and finds the key full.
    starts: Counter[str] = Counter()
    for number in range(500):
        drive.clock.forward(MOMENT)
        mine = drive.take(ends=mine)
        starts.update(owner[run.call] for run in mine)
        if number >= 200 and number % 40 == 0:  # Busy for longer than room is kept for, then for less.
            theirs = beside.take(ends=theirs)
            starts.update(owner[run.call] for run in theirs if run.call in owner)
    assert starts["tenant:b"] >= 2


def test_a_newcomer_is_next_and_then_turns_go_on(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 5, 80)
    assert set(drain([drive], owner, 40)) == {"tenant:a"}
    owner |= cut(drive, "tenant:b", 1, 20)
    runs = drive.drain()
    order = [owner[call] for call in runs]
    assert "tenant:b" in order[:2]
    assert longest(order[:20]) == 1


def test_a_call_among_many_tenants_starts_within_a_round(drive: Drive) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    names = [drive.key(f"tenant:{n}").name for n in range(20)]
    owner = {call.id: name for name in names for call in drive.send_many(3, "api", name)}
    drain([drive], owner, 25)
    late = drive.send("api", drive.key("tenant:late").name)
    owner |= {late.id: "tenant:late"} | cut(drive, "tenant:0", 10, 10)
    order = [owner[call] for call in drive.drain()]
    assert order.index("tenant:late") <= 20


@pytest.mark.slow
@pytest.mark.deliveries("direct")
def test_a_single_call_among_10_000_tenants_starts_within_a_round(drive: Drive) -> None:
    room = 16
    drive.key(concurrency=room, fair_by="tenant:*")
    names = [f"tenant:{n}" for n in range(10_000)]
    RateLimitKey.objects.bulk_create(RateLimitKey(name=name) for name in names)
    calls = CallQueue.objects.send_many([api.Call(TASK, queue=drive.queue, keys=["api", name]) for name in names])
    owner = {call.id: name for call, name in zip(calls, names, strict=True)} | cut(drive, "tenant:0", 20, 200)
    drain([drive], owner, 10 * room, room)
    late = drive.send("api", drive.key("tenant:late").name)
    order = drain([drive], owner | {late.id: "tenant:late"}, 200 * room, room)
    assert "tenant:late" in order, "a third of a round: as soon as the lanes that are ready stand in line"
    assert order.count("tenant:0") <= 2


def test_priorities_are_strict_above_shares(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=0, fair_by="tenant:*")  # else the first send may dispatch its call
    owner = cut(drive, "tenant:a", 3, 12) | cut(drive, "tenant:b", 1, 12)
    first = cut(drive, "tenant:a", 1, 6, priority=5)
    api.limit("api", {"concurrency": 1, "fair_by": "tenant:*"})
    runs = drive.drain()
    order = [(owner | first)[call] for call in runs]
    assert {*runs[:6]} == {*first}
    assert longest(order[6:]) <= 2


def test_calls_without_a_tenant_are_one_share(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 1, 10)
    topics = [drive.key(f"topic:{n}").name for n in range(8)]
    owner |= {drive.send("api", topic).id: "none" for topic in topics for _ in range(2)}
    order = drain([drive], owner, 16)
    assert Counter(order) == {"tenant:a": 8, "none": 8}


def test_fair_by_takes_effect_for_calls_that_wait(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=1)
    owner = cut(drive, "tenant:a", 10, 60) | cut(drive, "tenant:b", 1, 30)
    assert drain([drive], owner, 22).count("tenant:b") <= 3
    api.limit("api", {"concurrency": 1, "fair_by": "tenant:*"})
    order = [owner[call] for call in drive.drain()]
    assert longest(order[12:40]) <= 2
    assert abs(Counter(order[12:40])["tenant:b"] - 14) <= 2


def test_turns_go_to_lanes_again_without_fair_by(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 10, 60) | cut(drive, "tenant:b", 1, 30)
    assert drain([drive], owner, 20).count("tenant:b") == 10
    api.limit("api", {"concurrency": 1})
    order = [owner[call] for call in drive.drain()]
    assert order[11:33].count("tenant:b") <= 3
    assert len(order) == 70


def test_another_limit_of_a_tenant_leaves_its_turns_to_others(drive: Drive) -> None:
    drive.key(concurrency=4, fair_by="tenant:*")
    drive.key("tenant:a", concurrency=1)
    drive.key("tenant:b")
    owner = cut(drive, "tenant:a", 4, 20) | cut(drive, "tenant:b", 4, 40)
    order = drain([drive], owner, 48, 4)
    assert order.count("tenant:a") >= 11
    assert len(order) + len(drive.drain()) == 60


@pytest.mark.deliveries("direct")
def test_the_status_shows_the_shares(drive: Drive) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    for name, weight in (("tenant:a", 1), ("tenant:b", 3)):
        drive.key(name, weight=weight)
    owner = cut(drive, "tenant:a", 3, 9) | cut(drive, "tenant:b", 1, 9)
    drain([drive], owner, 4)
    (run,) = drive.take()
    shares = drive.status().shares
    found = {share.share: (share.lanes, share.weight) for share in shares}
    assert found == {"tenant:a": (3, 1), "tenant:b": (1, 3)}
    assert min(share.ahead for share in shares) <= 1
    drive.end(run)


@pytest.mark.deliveries("direct")
def test_shares_are_forgotten_when_nothing_waits(drive: Drive, tenants: list[str]) -> None:
    drive.key(concurrency=1, fair_by="tenant:*")
    owner = cut(drive, "tenant:a", 2, 4) | cut(drive, "tenant:b", 1, 4)
    drain([drive], owner, 4)
    drive.recover()
    assert Share.objects.count() == 3
    drive.drain()
    drive.recover()
    assert not Share.objects.exists()


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"fair_by": "tenant"}, "fair_by"),
        ({"fair_by": "*"}, "fair_by"),
        ({"weight": 0}, "weight"),
        ({"weight": 1001}, "weight"),
    ],
)
@pytest.mark.deliveries("direct")
def test_what_is_no_share_is_refused_by_name(drive: Drive, limits: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        drive.key("api", **limits)
    assert refused.value.field == f"policy.{field}"
    key = drive.key("mine")
    with pytest.raises(PolicyInvalid, match="an override changes limits only"):
        api.override(key.name, until=drive.at(60), **{field: "t:*" if field == "fair_by" else 2})
