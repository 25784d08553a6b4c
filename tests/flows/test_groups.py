"""Flows of calls that spend any of several keys: the task learns which, and a provider's stop leads to another one."""

from collections import Counter

import pytest

from dispatcher.api import any_of
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.flows import sample_tasks
from tests.flows.one_slot import ended, send, start
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import most_at_once, spent_by_key
from tests.races.lockstep import concurrent

pytestmark = [concurrent, pytest.mark.broker, pytest.mark.slow]

EGRESS = any_of("egress:*")
FALLBACK = {"FLOWS_FALLBACK": "1"}


def declare(**limits: int) -> list[int]:
    return [RateLimitKey.objects.declare(f"egress:{number}", **limits).pk for number in (1, 2)]


@pytest.mark.usefixtures("one_slot")
@pytest.mark.parametrize(
    ("delivery", "pool"),
    [
        ("broker", "prefork"),
        *(pytest.param("direct", pool, marks=pytest.mark.direct) for pool in ("prefork", "threads")),
    ],
    indirect=["delivery"],
)
def test_a_task_learns_which_key_was_chosen(processes: Processes, pool: str) -> None:
    keys = declare(concurrency=1)
    start(processes, "-P", pool, env=FALLBACK)
    tasks = [Call(task=sample_tasks.chosen, kwargs={"seconds": 0.05}, keys=[EGRESS], queue=QUEUE)] * 8
    calls = CallQueue.objects.send_many(tasks)
    found = [(row.result, (row.chosen_keys or {})[EGRESS]) for row in map(ended, calls)]
    assert all(named == stored for named, stored in found)
    assert Counter(named for named, _ in found).keys() == {"egress:1", "egress:2"}
    assert [most_at_once(spent_by_key()[key]) for key in keys] == [1, 1]


@pytest.mark.usefixtures("one_slot")
@pytest.mark.parametrize(
    "delivery", ["broker", pytest.param("direct", marks=[pytest.mark.direct, pytest.mark.smoke])], indirect=True
)
def test_a_refused_call_goes_on_under_another_key_and_only_the_one_it_used_is_blocked(processes: Processes) -> None:
    RateLimitKey.objects.declare("provider")
    declare()
    start(processes, env=FALLBACK)
    call = ended(send(sample_tasks.chosen, "egress:1", keys=["provider", EGRESS]))
    assert (call.state, call.result, call.attempt) == (State.COMPLETED, "egress:2", 1)
    blocked = RateLimitKey.objects.filter(blocked_until__isnull=False)
    assert list(blocked.values_list("name", flat=True)) == ["egress:1"]
