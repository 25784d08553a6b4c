"""Observed keys: their limits stop nothing; the starts that they would have delayed are counted."""

from datetime import timedelta

import pytest

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.errors import PolicyInvalid
from dispatcher.models import KeyChange, Start
from dispatcher.states import State
from tests.drive import Drive


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"concurrency": 0}, {"rate": (1, 60)}, {"throttle": (1, 60)}])
def test_an_observed_key_stops_nothing(drive: Drive, limits: dict[str, object]) -> None:
    drive.key(**limits, observe=True)
    drive.send_many(4, "api")
    assert len(drive.take(4)) == 4
    assert drive.use("api") == 4
    assert drive.status("api").state == "observed"


@pytest.mark.deliveries("direct", "http")
def test_an_observed_limit_per_worker_stops_nothing(drive: Drive) -> None:
    drive.key(per_worker=1, observe=True)
    drive.send_many(3, "api")
    assert len(drive.take(3)) == 3
    assert drive.observed().delayed == 0  # another worker may have had room


def test_what_a_concurrency_would_have_delayed_is_counted(drive: Drive) -> None:
    drive.key(concurrency=2, observe=True)
    drive.send_many(5, "api")
    runs = drive.take(5)
    assert (drive.observed().delayed, drive.observed().longest) == (3, None)
    for run in runs:
        drive.end(run)
    drive.send_many(2, "api")
    drive.take(2)
    assert drive.observed().delayed == 3


def test_calls_that_a_window_would_have_delayed_go_one_behind_the_other(drive: Drive) -> None:
    drive.key(rate=(4, 60), observe=True)
    drive.send_many(4, "api")
    drive.take(4)
    assert drive.observed().delayed == 0
    drive.forward(20)
    drive.send_many(3, "api")
    drive.take(3)
    longest = drive.observed().longest
    assert longest is not None
    assert drive.observed().delayed == 3
    # The first waits until the first start leaves the window, each other one for a quarter of a minute more.
    assert timedelta(seconds=70) <= longest <= timedelta(seconds=70.2)


def test_calls_that_a_throttle_would_have_delayed_go_one_behind_the_other(drive: Drive) -> None:
    drive.key(throttle=(1, 10), observe=True)
    drive.send_many(5, "api")
    drive.take(5)
    assert (drive.observed().delayed, drive.observed().longest) == (4, timedelta(seconds=40))
    drive.forward(45)
    drive.send("api")
    drive.take()
    assert (drive.observed().delayed, drive.observed().longest) == (5, timedelta(seconds=40))


@pytest.mark.deliveries("direct", "broker")
def test_a_delay_that_a_trip_bridges_is_none(drive: Drive) -> None:
    drive.key(throttle=(10, 1), observe=True)
    drive.send_many(2, "api")
    drive.take(2)
    assert (drive.observed().delayed, drive.observed().longest) == (0, None)


def test_a_pause_and_a_block_stop_an_observed_key(drive: Drive) -> None:
    drive.key(concurrency=1, observe=True)
    api.pause("api")
    drive.send_many(2, "api")
    assert drive.take(2) == []
    api.resume("api")
    api.block("api", 30)
    assert drive.take(2) == []


def test_what_waits_at_the_limit_goes_when_its_key_is_observed(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(4, "api")
    assert len(drive.take(4)) == 1
    drive.has_other_limits = True
    api.observe("api", by="ada")
    drive.forward(1)
    assert len(drive.take(4)) == 3
    assert drive.observed().delayed == 3


def test_what_started_counts_when_the_limits_are_enforced(drive: Drive) -> None:
    drive.key(rate=(2, 60), observe=True)
    drive.send_many(3, "api")
    drive.take(3)
    drive.has_other_limits = True
    api.enforce("api", by="ada")
    call = drive.send("api")
    assert drive.take() == []
    drive.forward(61)
    drive.take()
    assert drive.state(call) == State.ACTIVE


def test_an_observed_key_enforces_nothing_of_the_others(drive: Drive) -> None:
    drive.key(concurrency=1, observe=True)
    drive.key("other", concurrency=2)
    drive.send_many(4, "api", "other")
    assert len(drive.take(4)) == 2
    assert drive.observed().delayed == 1


def test_other_limits_begin_the_count_again(drive: Drive) -> None:
    drive.key(concurrency=1, observe=True)
    drive.send_many(3, "api")
    drive.take(3)
    assert drive.observed().delayed == 2
    drive.forward(1)
    api.limit("api", {"concurrency": 5})
    assert drive.observed().delayed == 0
    drive.forward(1)
    drive.send_many(3, "api")
    assert len(drive.take(3)) == 3
    assert drive.observed().delayed == 1


def test_a_call_that_the_limits_would_never_allow_starts(drive: Drive) -> None:
    drive.key(concurrency=2, observe=True)
    drive.send(costs={"api": 5})
    assert len(drive.take()) == 1
    assert drive.observed().delayed == 1


def test_a_member_that_is_observed_has_room_for_its_group(drive: Drive) -> None:
    drive.key("pool:a", concurrency=1, observe=True)
    drive.send_many(3, any_of("pool:*"))
    assert len(drive.take(3)) == 3
    assert drive.observed("pool:a").delayed == 2


@pytest.mark.deliveries("direct")
def test_a_start_writes_nothing_more_where_no_key_is_observed(drive: Drive) -> None:
    drive.key(rate=(2, 60))
    drive.send("api")
    drive.take()
    assert [*Start.objects.values_list("delayed", "longest", "allowed_at")] == [(None, None, None)]


@pytest.mark.deliveries("direct")
def test_who_observes_and_enforces_a_key_is_in_its_history(drive: Drive) -> None:
    drive.key(concurrency=1)
    api.observe("api", by="ada")
    api.enforce("api", by="bob")
    changes = KeyChange.objects.order_by("id").values_list("actor", "before", "after")
    assert [*changes] == [
        ("ada", {"is_observed": False}, {"is_observed": True}),
        ("bob", {"is_observed": True}, {"is_observed": False}),
    ]


@pytest.mark.deliveries("direct")
def test_observe_is_true_or_false(drive: Drive) -> None:
    with pytest.raises(PolicyInvalid, match="observe: 'yes' must be True or False"):
        drive.key(observe="yes")
    key = drive.key(concurrency=1)
    with pytest.raises(PolicyInvalid, match=r"override.observe: an override changes limits only"):
        api.override(key.name, until=drive.at(60), observe=True)
