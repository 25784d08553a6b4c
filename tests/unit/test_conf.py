"""The DISPATCHER setting: read live, and wrong ones named with what was meant."""

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.conf import CONCURRENT_DECISIONS, RETENTION, Conf, Tuning, conf, pass_bound, read, send_bound, settable
from dispatcher.errors import ConfigurationError, DispatcherError
from dispatcher.states import TERMINAL

WITHOUT_WORKERS = Conf(queue_grace=None, delivery={"*": "broker"})
"""The defaults, but for what holds in all tests."""


@pytest.mark.parametrize("nothing", [{}, None])
def test_without_the_setting_the_defaults_hold(nothing: Any, settings: Any) -> None:
    settings.DISPATCHER = nothing
    assert conf() == WITHOUT_WORKERS
    del settings.DISPATCHER
    assert conf() == WITHOUT_WORKERS


def test_the_setting_is_read_live(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 7}
    assert conf().batch == 7
    settings.DISPATCHER = {"batch": 8}
    assert conf().batch == 8
    settings.DISPATCHER = {}
    assert conf().batch == Conf().batch


def test_the_settings_can_not_be_changed_by_who_reads_them() -> None:
    with pytest.raises(FrozenInstanceError):
        conf().batch = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batches", "batch"),
        ("hart_beat", "heartbeat"),
        ("key", "keys"),
        ("KEYS", "keys"),
        ("prepared_statement", "prepared_statements"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(name: str, meant: str, settings: Any) -> None:
    settings.DISPATCHER = {name: 1}
    with pytest.raises(ConfigurationError, match=rf"DISPATCHER\['{name}'\] is not a setting: did you mean '{meant}'\?"):
        conf()


def test_an_unknown_name_that_is_like_no_other_is_refused_with_all_there_are(settings: Any) -> None:
    settings.DISPATCHER = {"zzz": 1}
    with pytest.raises(ConfigurationError) as caught:
        conf()
    assert isinstance(caught.value, DispatcherError)
    assert all(name in str(caught.value) for name in settable())


def test_a_constant_of_the_engine_is_no_setting() -> None:
    for constant in fields(Tuning):
        assert read({constant.name: 1})[1], constant.name


def test_every_setting_that_is_wrong_is_named_at_once(settings: Any) -> None:
    settings.DISPATCHER = {"tick": "1s", "zzz": 1, "keys": ["api"]}
    with pytest.raises(ConfigurationError) as caught:
        conf()
    zzz, tick, keys = str(caught.value).splitlines()
    assert tick.startswith("DISPATCHER['tick'] is '1s': give a timedelta")
    assert zzz.startswith("DISPATCHER['zzz'] is not a setting")
    assert keys == "DISPATCHER['keys'] is ['api']: give a dict, such as {\"api.example.com\": {\"concurrency\": 5}}."


def test_a_retention_is_a_timedelta_or_a_number_of_seconds(settings: Any) -> None:
    settings.DISPATCHER = {"retention": {"completed": 60, "cancelled": timedelta(days=1), "discarded": None}}
    kept = {"completed": timedelta(minutes=1), "cancelled": timedelta(days=1), "discarded": None}
    assert conf().retention == kept


def test_a_setting_that_is_wrong_is_refused_every_time(settings: Any) -> None:
    settings.DISPATCHER = {"zzz": 1}
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            conf()


@pytest.mark.parametrize(("value", "seconds"), [(2, 2), (0.5, 0.5), (0, 0), (timedelta(minutes=1), 60)], ids=str)
def test_a_duration_is_a_timedelta_or_a_number_of_seconds(value: Any, seconds: float, settings: Any) -> None:
    for name, kind in settable().items():
        if kind is timedelta:
            settings.DISPATCHER = {name: value}
            assert getattr(conf(), name) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tick": "1s"},
        {"tick": True},
        {"tick": None},
        {"tick": float("nan")},
        {"tick": 1e300},
        {"batch": "500"},
        {"batch": True},
        {"batch": 1.5},
        {"max_payload_bytes": None},
        {"database": None},
        {"database": 5},
        {"dispenser_queue": b"d"},
        {"keys": ["api"]},
        {"keys": "api"},
        {"retry": 3},
        {"retention": 7},
        {"prepared_statements": "no"},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_refused_by_its_name(wrong: Any, settings: Any) -> None:
    settings.DISPATCHER = wrong
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=rf"^DISPATCHER\['{name}'\] is .*: give "):
        conf()


@pytest.mark.parametrize("wrong", ["batch", ["batch"], [], 5], ids=str)
def test_a_setting_that_is_no_dict_is_refused(wrong: Any, settings: Any) -> None:
    settings.DISPATCHER = wrong
    with pytest.raises(ConfigurationError, match=r"DISPATCHER is .*: give a dict"):
        conf()


def test_a_setting_that_may_be_left_open_takes_none_and_its_own_kind(settings: Any) -> None:
    for value in (None, True, False):
        settings.DISPATCHER = {"prepared_statements": value}
        assert conf().prepared_statements is value


def test_every_ended_state_has_a_retention_and_no_other_has() -> None:
    assert set(RETENTION) == set(TERMINAL)


def test_a_greater_dispatch_ahead_never_lets_fewer_calls_go() -> None:
    bounds = [pass_bound(Conf(dispatch_ahead=ahead)) for ahead in range(1, 300)]
    assert bounds == sorted(bounds)
    assert bounds[:64] == list(range(1, 65))
    assert bounds[64] == 64


def test_passes_and_lone_senders_that_decide_at_once_stay_within_dispatch_ahead() -> None:
    for ahead in range(1, 300):
        settings = Conf(dispatch_ahead=ahead)
        at_once = CONCURRENT_DECISIONS if send_bound(settings) else 0
        assert max(pass_bound(settings), send_bound(settings)) + at_once <= ahead
