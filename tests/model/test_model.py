"""The real engine against a hundred lines of rules: whatever happens, in whatever order, both say the same.

MODEL_EXAMPLES=2000 tries that many sequences, other ones each time, with MODEL_STEPS steps each (20); with
MODEL_SHRINK=1 one that fails is made shorter, which takes minutes.
"""

import os
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test
from pytest_django import Settings

from tests.builders import committed
from tests.model.clock import stopped_clock
from tests.model.machine import Machine
from tests.model.rules import DISPATCH_LEASE, HORIZON, IN_LINE, LEAD, MARGIN, RUN_LEASE

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("MODEL_STEPS", "20"))
SETTINGS = {
    # The rules let all go at the end of a block.
    "ramp": timedelta(0),
    "margin": MARGIN,
    "horizon": HORIZON,
    "lead": LEAD,
    "dispatch_lease": DISPATCH_LEASE,
    "run_lease": RUN_LEASE,
    "heartbeat": IN_LINE,
}


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
        # To shrink a sequence takes minutes.
        phases=[Phase.generate, Phase.shrink] if "MODEL_SHRINK" in os.environ else [Phase.generate],
    )
    with stopped_clock():
        run_state_machine_as_test(Machine, settings=tried)
