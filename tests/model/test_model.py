"""The real engine against two hundred lines of rules: whatever happens, in whatever order, both go the same way.

Some sequences are always the same; others come from a seed, which is that of the day, and part of the test's name:
MODEL_SEED=20300101 repeats those of a day. MODEL_EXAMPLES=2000 tries that many of them, with MODEL_STEPS steps each
(20); with MODEL_SHRINK=1 one that fails is made shorter, which takes minutes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase
from hypothesis import seed as seeded
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test
from psycopg.sql import SQL, Identifier
from pytest_django import Settings

from tests.builders import committed
from tests.clock import stopped_clock
from tests.conftest import MODEL_SEED
from tests.model.machine import Machine
from tests.model.rules import DISPATCH_LEASE, FETCH_LEASE, HORIZON, IN_LINE, MARGIN, RAMP, RUN_LEASE
from tests.races.lockstep import actors

pytestmark = pytest.mark.ojs
"""All deliveries share its keys."""

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "60"))
STEPS = int(os.environ.get("MODEL_STEPS", "20"))
SETTINGS = {
    "ramp": RAMP,
    "margin": MARGIN,
    "horizon": HORIZON,
    "dispatch_lease": DISPATCH_LEASE,
    "run_lease": RUN_LEASE,
    "visibility": FETCH_LEASE,
    "heartbeat": IN_LINE,
}


@pytest.fixture(autouse=True)
def _machine(transactional_db: None, mailbox: object, settings: Settings) -> Iterator[None]:
    settings.DISPATCHER = SETTINGS
    with stopped_clock() as clock, _tuned(), actors(1) as (actor,):
        Machine.clock, Machine.actor = clock, actor
        yield


@contextmanager
def _tuned() -> Iterator[None]:
    """Let no statement wait for what somebody keeps locked, which would be for ever, and no commit for the disk."""
    database = SQL("ALTER DATABASE {} ").format(Identifier(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute(database + SQL("SET lock_timeout = '2s'"))
        cursor.execute(database + SQL("SET synchronous_commit = off"))
    connection.close()
    yield
    with connection.cursor() as cursor:
        cursor.execute(database + SQL("RESET lock_timeout"))
        cursor.execute(database + SQL("RESET synchronous_commit"))
    connection.close()


def go(examples: int, *, seed: int | None = None) -> None:
    tried = profile(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=seed is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        # To shrink a sequence takes minutes.
        phases=[Phase.generate, Phase.shrink] if "MODEL_SHRINK" in os.environ else [Phase.generate],
    )
    # The seed stays with the class.
    machine = type("Machine", (Machine,), {})
    run_state_machine_as_test(machine if seed is None else seeded(seed)(machine), settings=tried)


@committed
@pytest.mark.timeout(240)
def test_the_engine_and_the_rules_go_the_same_way() -> None:
    go(20)


@committed
@pytest.mark.timeout(0 if "MODEL_EXAMPLES" in os.environ else 240)
@pytest.mark.parametrize("seed", [int(os.environ[MODEL_SEED])])
def test_they_go_the_same_way_by_the_seed_of_the_day(seed: int) -> None:
    go(EXAMPLES, seed=seed)
