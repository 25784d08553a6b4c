"""What strikes when: a pure function of the seed, the time there is, and which servers may be stopped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from random import Random

QUEUES = ("main", "side")
SERVES = {"worker-1": QUEUES, "worker-2": ("main",)}
"""The queues of each worker: when the first one dies, the second queue is without a worker."""
WORKERS = tuple(SERVES)
DISPENSERS = ("dispenser-1", "dispenser-2", "dispenser-3")
BEATS = ("beat-1", "beat-2")
SENDERS = ("sender-1", "sender-2")

FIRST = 3.0
"""Seconds until the first fault."""
GAP = (2.0, 4.0)
"""The seconds from one fault to the next, which may begin before the one before is over."""
PAST_LEASES = (6.0, 9.0)
"""Seconds that are longer than a lease (see `settings`)."""


class Needs(Flag):
    """What there must be for a fault to be possible: servers that are embedded, and so ours to stop, or messages."""

    NOTHING = 0
    DATABASE = auto()
    BROKER = auto()
    MESSAGES = auto()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fault: whom it strikes, how long it lasts, and how long who was struck is then left in peace."""

    words: str = field(kw_only=False)
    targets: Sequence[str] = field(kw_only=False)
    seconds: tuple[float, float] = (0.0, 0.0)
    peace: float = 5.0
    needs: Needs = Needs.NOTHING


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the schedule; `at` and `seconds` from the beginning of the schedule."""

    number: int
    kind: str
    target: str
    at: float
    seconds: float

    @property
    def words(self) -> str:
        """Return what happens to the target."""
        return KINDS[self.kind].words


KINDS = {
    "worker_killed": Kind("killed with its children", WORKERS, peace=10.0),
    "worker_killed_at_start": Kind("killed between claim and run", WORKERS, peace=10.0),
    "main_killed": Kind("killed without its children", WORKERS, peace=10.0),
    "main_frozen": Kind(
        "frozen without its children past its leases, thawed", WORKERS, seconds=PAST_LEASES, peace=10.0
    ),
    "child_killed": Kind("one child killed", WORKERS, peace=3.0),
    "child_killed_as_notified": Kind("one idle child killed as it was notified", WORKERS, peace=3.0),
    "child_killed_at_start": Kind("one child killed between start and run", WORKERS, peace=3.0),
    "child_killed_at_end": Kind("one child killed between run and record", WORKERS, peace=3.0),
    "child_frozen": Kind("one child frozen, thawed", WORKERS, seconds=PAST_LEASES, peace=3.0),
    "worker_frozen": Kind("frozen past its leases, thawed", WORKERS, seconds=PAST_LEASES, peace=10.0),
    "worker_frozen_at_start": Kind("frozen between claim and run, thawed", WORKERS, seconds=PAST_LEASES, peace=10.0),
    "worker_warm_shutdown": Kind("shut down (warm)", WORKERS, peace=10.0),
    "worker_cold_shutdown": Kind("shut down (cold)", WORKERS, peace=10.0),
    "dispenser_killed": Kind("killed", DISPENSERS, needs=Needs.MESSAGES),
    "dispenser_killed_publishing": Kind("killed between commit and publish", DISPENSERS, needs=Needs.MESSAGES),
    "sender_killed": Kind("killed", SENDERS),
    "sender_killed_waking": Kind("killed between commit and wake", SENDERS),
    "sender_killed_publishing": Kind("killed between commit and publish", SENDERS, needs=Needs.MESSAGES),
    "beat_killed": Kind("killed", BEATS, needs=Needs.MESSAGES),
    "messages_lost": Kind("emptied: all messages lost", ("broker",), peace=3.0, needs=Needs.MESSAGES),
    "messages_repeated": Kind(
        "messages delivered again, of ended calls too", ("broker",), peace=1.0, needs=Needs.MESSAGES
    ),
    "broker_cut": Kind("unreachable", ("broker",), seconds=(2.0, 5.0), peace=4.0, needs=Needs.MESSAGES),
    "broker_silent": Kind("silent", ("broker",), seconds=(2.0, 5.0), peace=4.0, needs=Needs.MESSAGES),
    "broker_restarted": Kind("stopped, back empty", ("broker",), seconds=(2.0, 5.0), peace=4.0, needs=Needs.BROKER),
    "database_cut": Kind("unreachable", ("database",), seconds=(1.0, 4.0), peace=4.0),
    "database_cut_long": Kind("unreachable past the leases", ("database",), seconds=PAST_LEASES),
    "database_silent": Kind("silent", ("database",), seconds=(1.0, 4.0), peace=4.0),
    "database_silent_long": Kind("silent past the leases", ("database",), seconds=PAST_LEASES),
    "database_answers_lost": Kind(
        "its answers lost, and the connections with them", ("database",), seconds=(0.5, 2.0), peace=3.0
    ),
    "database_disconnected": Kind("all connections ended", ("database",), peace=3.0),
    "database_restarted_fast": Kind(
        "restarted (fast)", ("database",), seconds=(0.5, 2.0), peace=4.0, needs=Needs.DATABASE
    ),
    "database_restarted_immediate": Kind(
        "restarted (immediate, a crash)", ("database",), seconds=(0.5, 2.0), peace=4.0, needs=Needs.DATABASE
    ),
    "long_transaction": Kind("a transaction held open", ("horizon",), seconds=(8.0, 15.0), peace=5.0),
}
"""Every kind of fault. A target is a process of the trial, or what a server is for."""


def queues_of(target: str) -> Sequence[str]:
    """Return the queues that a fault of this target touches."""
    return SERVES.get(target, QUEUES)


def plan(seed: int, seconds: float, *, can_stop: Needs, kinds: Collection[str] = KINDS) -> list[Fault]:
    """Return the faults, of these kinds, that begin within so many seconds.

    Every kind comes once before any comes twice; those of one target follow each other at a distance.
    """
    chance = Random(seed)  # noqa: S311 - a schedule must be the same for the same seed
    possible = sorted(name for name in kinds if KINDS[name].needs in can_stop)
    deck: list[str] = []
    free_at: dict[str, float] = {}
    faults: list[Fault] = []
    at = FIRST
    while at < seconds and possible:
        if not deck:
            deck = chance.sample(possible, len(possible))
        at = max(at, min(min(free_at.get(target, 0.0) for target in KINDS[name].targets) for name in deck))
        name, target = next(
            (name, target)
            for name in deck
            for target in chance.sample(KINDS[name].targets, len(KINDS[name].targets))
            if free_at.get(target, 0.0) <= at
        )
        kind = KINDS[name]
        lasts = round(chance.uniform(*kind.seconds), 1)
        if at >= seconds:
            break
        deck.remove(name)
        faults.append(Fault(number=len(faults) + 1, kind=name, target=target, at=round(at, 1), seconds=lasts))
        free_at[target] = at + lasts + kind.peace
        at += chance.uniform(*GAP)
    return faults
