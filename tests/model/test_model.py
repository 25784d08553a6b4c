"""The real engine against a hundred lines of rules: whatever happens, in whatever order, both say the same.

MODEL_EXAMPLES=2000 tries that many stories, other ones each time, with MODEL_STEPS steps each (20); with
MODEL_SHRINK=1 one that fails is made shorter, which takes minutes.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test
from pytest_django import Settings

from tests.builders import committed
from tests.model.clock import stopped_clock
from tests.model.machine import SETTINGS, Machine

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("MODEL_STEPS", "20"))


@committed
@pytest.mark.timeout(0 if EXAMPLES else 240)
def test_the_engine_and_the_rules_go_the_same_way(settings: Settings) -> None:
    settings.DISPATCHER = SETTINGS
    tried = profile(
        max_examples=EXAMPLES or 20,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        # To make a story shorter takes minutes.
        phases=[Phase.generate, Phase.shrink] if "MODEL_SHRINK" in os.environ else [Phase.generate],
    )
    with stopped_clock():
        run_state_machine_as_test(Machine, settings=tried)
