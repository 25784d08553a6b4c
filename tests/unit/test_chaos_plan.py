"""The schedule of the chaos trial follows from its seed, and leaves each target time to come back."""

import subprocess
import sys
from itertools import pairwise

import pytest

from project.run_dirs import ROOT
from trials.chaos.faults import Faults
from trials.chaos.plan import KINDS, Needs, plan

ALL = Needs.DATABASE | Needs.BROKER | Needs.MESSAGES


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_schedule_and_another_one_another(seed: int) -> None:
    assert plan(seed, 600, can_stop=ALL) == plan(seed, 600, can_stop=ALL)
    assert plan(seed, 600, can_stop=ALL) != plan(seed + 1, 600, can_stop=ALL)


def test_every_kind_strikes_before_one_strikes_twice() -> None:
    kinds = [fault.kind for fault in plan(1, 1800, can_stop=ALL)]
    assert set(kinds[: len(KINDS)]) == set(KINDS)


def test_the_help_lists_every_kind() -> None:
    words = subprocess.check_output([sys.executable, "-m", "trials.chaos", "--help"], text=True, cwd=ROOT)
    assert set(KINDS) <= set(words.replace(",", " ").split())


def test_servers_of_others_are_never_stopped() -> None:
    kinds = {fault.kind for fault in plan(1, 1800, can_stop=Needs.NOTHING)}
    assert kinds == {name for name, kind in KINDS.items() if kind.needs is Needs.NOTHING}


@pytest.mark.parametrize("seed", range(5))
def test_a_target_is_left_in_peace_after_a_fault(seed: int) -> None:
    faults = plan(seed, 1800, can_stop=ALL)
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    for target in {fault.target for fault in faults}:
        for first, second in pairwise(fault for fault in faults if fault.target == target):
            assert second.at - first.at >= first.seconds + KINDS[first.kind].peace - 0.1


def test_only_the_kinds_that_are_asked_for_strike() -> None:
    assert {fault.kind for fault in plan(1, 100, can_stop=ALL, kinds=["child_killed"])} == {"child_killed"}
    assert plan(1, 100, can_stop=Needs.NOTHING, kinds=["broker_restarted"]) == []


def test_every_kind_can_strike() -> None:
    assert [kind for kind in KINDS if not hasattr(Faults, f"_{kind}")] == []
