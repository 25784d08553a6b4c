"""All that the engine and people do, at once and in any order: nothing is raised, lost, leaked or run twice."""

import random
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.errors import PolicyInvalid, RateLimited
from dispatcher.lifecycle import run
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import renew
from tests.races.audit import audit
from tests.races.lockstep import Mailbox, at_once, concurrent
from tests.races.traffic import declare_tenants, work

pytestmark = [concurrent, pytest.mark.server, pytest.mark.slow]

LIMITED = ("few", "some", "even")
TENANTS = 6


def test_everything_at_once_raises_nothing_loses_nothing_and_runs_no_ticket_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A key that is stopped for a second takes no part in what is left of the run.
    monkeypatch.setattr(run, "SHORTEST_STOP", timedelta(0))
    settings.DISPATCHER = {
        "dispatch_lease": 0.2,
        "run_lease": 0.2,
        "tick": 0.05,
        "margin": 0.01,
        "publish_after": 0.1,
        "reschedule_after": 0.05,
        "retry": {"initial_interval": 0, "max_attempts": 2},
    }
    RateLimitKey.objects.declare("few", concurrency=4)
    RateLimitKey.objects.declare("some", rate=(40, 0.25))
    RateLimitKey.objects.declare("even", throttle=(400, 1))
    declare_tenants(TENANTS)
    ran: list[UUID] = []
    at_once(*[partial(play, seed, 40, ran) for seed in range(14)])
    for name in LIMITED:
        api.end_override(name)
        api.resume(name)
    at_once(*[partial(drain, seed, ran) for seed in range(4)])
    assert len(ran) == len(set(ran)) > 100
    assert not Slot.objects.exists()
    audit(limits_changed=True)


def play(seed: int, turns: int, ran: list[UUID]) -> None:
    """Do a little of everything."""
    player = Player(seed, ran)
    for _ in range(turns):
        player.turn()


def drain(seed: int, ran: list[UUID]) -> None:
    """Run what is left, to the last call."""
    work(lambda: engine.recover() + engine.tick(), run=Player(seed, ran).run)


class Player:
    """Someone who sends, works, dispenses and administers, by the dice; `ran` notes each ticket that it ran."""

    def __init__(self, seed: int, ran: list[UUID]) -> None:
        self.dice = random.Random(seed)  # noqa: S311 -- not for secrets
        self.mailbox = Mailbox()
        self.ran = ran
        self.verbs = [
            *[self.take] * 12,
            *[self.send] * 4,
            *[self.send_many] * 2,
            *[self.blink] * 2,
            self.roll_back,
            self.cancel,
            self.run_now,
            self.retry,
            self.limit,
            self.override,
            self.beat,
            engine.recover,
            engine.tick,
            engine.dispense,
        ]

    def turn(self) -> None:
        self.dice.choice(self.verbs)()

    def take(self) -> None:
        """Run the next message; one in five is delivered twice, or comes back later."""
        message = self.mailbox.take()
        if message is not None:
            self.run(*message)
            if self.dice.random() < 0.2:
                self.run(*message)

    def run(self, call_id: UUID, ticket: UUID) -> None:
        engine.execute(call_id, ticket, partial(self.task, ticket))

    def task(self, ticket: UUID) -> str:
        self.ran.append(ticket)
        end = self.dice.random()
        if end < 0.1:
            raise ValueError
        if end < 0.15:
            raise RateLimited(0.02)
        return "done"

    def call(self) -> Call:
        names = [*self.dice.sample(LIMITED, self.dice.randint(0, 2)), f"tenant:{self.dice.randrange(TENANTS)}"]
        return Call(
            task="noop",
            keys={name: self.dice.choice((1, 1, 2)) for name in names},
            priority=self.dice.choice((0, 0, 1)),
            on_limit=self.dice.choice(("wait", "wait", "wait", "reschedule", "drop")),
            scheduled_at=self.dice.choice((None, None, timezone.now() + timedelta(milliseconds=50))),
        )

    def send(self) -> None:
        CallQueue.objects.send("noop", keys=self.dice.sample(LIMITED, 1), priority=self.dice.choice((0, 1)))

    def send_many(self) -> None:
        CallQueue.objects.send_many([self.call() for _ in range(8)])

    def roll_back(self) -> None:
        with transaction.atomic():
            CallQueue.objects.send_many([self.call() for _ in range(3)])
            transaction.set_rollback(True)

    def some(self, *states: State) -> list[UUID]:
        """Return some calls in these states, in any order."""
        return list(CallQueue.objects.filter(state__in=states).order_by("?").values_list("id", flat=True)[:5])

    def cancel(self) -> None:
        api.cancel(self.some(*State))

    def run_now(self) -> None:
        api.run_now(self.some(State.SCHEDULED, State.AVAILABLE, State.RETRYABLE))

    def retry(self) -> None:
        api.retry(self.some(State.COMPLETED, State.CANCELLED, State.DISCARDED)[:2])

    def blink(self) -> None:
        name = self.dice.choice(LIMITED)
        api.pause(name)
        api.resume(name)

    def limit(self) -> None:
        api.limit("few", {"concurrency": self.dice.randint(2, 6)})

    def override(self) -> None:
        until, concurrency = timezone.now() + timedelta(milliseconds=30), self.dice.randint(2, 6)
        with suppress(PolicyInvalid):  # On a busy machine the time may be past before the database is asked.
            api.override("few", until=until, concurrency=concurrency)

    def beat(self) -> None:
        held = CallQueue.objects.in_flight().order_by("?").values_list("id", "ticket")
        renew(list(held[:5]))
