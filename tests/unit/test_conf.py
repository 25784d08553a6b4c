"""The DISPATCHER setting: read live, and wrong ones named with what was meant."""

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.conf import RETENTION, Conf, Tuning, conf, read, settable
from dispatcher.errors import ConfigurationError
from dispatcher.states import TERMINAL

WITHOUT_WORKERS = Conf(queue_grace=None, delivery={"*": "broker"})
"""The defaults, but for what holds in all tests."""


def test_the_setting_is_read_live_and_without_it_the_defaults_hold(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 7, "retention": {"completed": 60, "discarded": None}}
    kept = {"completed": timedelta(minutes=1), "discarded": None}
    assert (conf().batch, conf().retention) == (7, kept)
    with pytest.raises(FrozenInstanceError):
        conf().batch = 5  # type: ignore[misc]
    settings.DISPATCHER = {"retention": {"cancelled": timedelta(days=1)}}
    assert conf().retention == {"cancelled": timedelta(days=1)}
    for nothing in ({}, None):
        settings.DISPATCHER = nothing
        assert conf() == WITHOUT_WORKERS
    del settings.DISPATCHER
    assert conf() == WITHOUT_WORKERS
    assert set(RETENTION) == set(TERMINAL)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("batches", "batch"), ("hart_beat", "heartbeat"), ("KEYS", "keys"), ("prepared_statement", "prepared_statements")],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(name: str, meant: str, settings: Any) -> None:
    settings.DISPATCHER = {name: 1}
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"\['{name}'\] is not a setting: did you mean '{meant}'\?"):
            conf()


def test_a_name_that_is_like_no_other_is_refused_with_all_there_are_and_so_are_the_engine_s_constants() -> None:
    assert all(name in read({"zzz": 1})[1][0] for name in settable())
    assert [constant.name for constant in fields(Tuning) if not read({constant.name: 1})[1]] == []


def test_a_duration_is_a_timedelta_or_a_number_of_seconds(settings: Any) -> None:
    durations = [name for name, kind in settable().items() if kind is timedelta]
    for value, seconds in ((2, 2), (0.5, 0.5), (0, 0), (timedelta(minutes=1), 60)):
        settings.DISPATCHER = dict.fromkeys(durations, value)
        assert {getattr(conf(), name) for name in durations} == {timedelta(seconds=seconds)}
    for value in (None, True, False):
        settings.DISPATCHER = {"prepared_statements": value}
        assert conf().prepared_statements is value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tick", ["1s", True, None, float("nan"), 1e300]),
        ("batch", ["500", True, 1.5]),
        ("max_payload_bytes", [None]),
        ("database", [None, 5]),
        ("dispenser_queue", [b"d"]),
        ("keys", [["api"], "api"]),
        ("retry", [3]),
        ("retention", [7]),
        ("prepared_statements", ["no"]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_name(name: str, values: list[Any], settings: Any) -> None:
    for value in values:
        settings.DISPATCHER = {name: value}
        with pytest.raises(ConfigurationError, match=rf"^DISPATCHER\['{name}'\] is .*: give "):
            conf()


@pytest.mark.parametrize("wrong", ["batch", ["batch"], [], 5], ids=str)
def test_a_setting_that_is_no_dict_is_refused(wrong: Any, settings: Any) -> None:
    settings.DISPATCHER = wrong
    with pytest.raises(ConfigurationError, match=r"DISPATCHER is .*: give a dict"):
        conf()


def test_every_setting_that_is_wrong_is_named_at_once(settings: Any) -> None:
    settings.DISPATCHER = {"tick": "1s", "zzz": 1, "keys": ["api"]}
    with pytest.raises(ConfigurationError) as caught:
        conf()
    zzz, tick, keys = str(caught.value).splitlines()
    assert tick.startswith("DISPATCHER['tick'] is '1s': give a timedelta")
    assert zzz.startswith("DISPATCHER['zzz'] is not a setting")
    assert keys == "DISPATCHER['keys'] is ['api']: give a dict, such as {\"api.example.com\": {\"concurrency\": 5}}."
