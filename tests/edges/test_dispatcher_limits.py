"""manage.py dispatcher_limits: what it says of settings and database, and what it writes."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django import Settings

from dispatcher import api, sql
from dispatcher.history import Actor
from dispatcher.models import CallQueue, KeyChange, RateLimitKey

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

KEYS = {"smtp": {"concurrency": 2}, "api": {"rate": (100, "PT1M")}, "tenant:*": {"concurrency": 2}}
BEFORE = {"smtp": {"concurrency": 9}, "api": {"rate": (50, "PT1M")}, "tenant:*": {"concurrency": 4}}


@pytest.fixture(autouse=True)
def _declared(settings: Settings) -> None:
    """Have keys as settings of earlier, and one of a template."""
    RateLimitKey.objects.all().delete()
    settings.DISPATCHER = {"keys": BEFORE}
    for name in ("smtp", "api"):
        RateLimitKey.objects.declare(name, **BEFORE[name])
    CallQueue.objects.send("t", keys=["tenant:a"])
    settings.DISPATCHER = {"keys": KEYS}


def printed(*args: str) -> str:
    out = io.StringIO()
    call_command("dispatcher_limits", *args, stdout=out)
    return out.getvalue()


def items(*args: str) -> dict[str, dict[str, Any]]:
    return {item["key"]: item for item in json.loads(printed(*args, "--json"))["items"]}


def states(*args: str) -> dict[str, str]:
    return {name: item["state"] for name, item in items(*args).items()}


def stored(name: str) -> RateLimitKey:
    return RateLimitKey.objects.get(name=name)


def test_show_has_each_key_with_both_policies_and_who_changed_it() -> None:
    RateLimitKey.objects.declare("other")
    api.limit("smtp", {"concurrency": 4}, by=Actor(name="ada", source="admin", reason="the provider is slow"))
    lines = {line.split()[0]: line for line in printed("show").splitlines()}
    assert "concurrency 2  " in lines["smtp"]
    assert "concurrency 4  " in lines["smtp"]
    assert "changed by ada (admin) just now: the provider is slow" in lines["smtp"]
    assert "100 in any 1m  50 in any 1m" in lines["api"]
    assert "differs, of tenant:*" in lines["tenant:a"]
    assert lines["other"].split()[-1] == "undeclared"


def test_without_a_verb_that_it_knows_it_fails() -> None:
    with pytest.raises(CommandError, match="write"):
        printed("write")


def test_diff_has_what_differs_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        call_command("dispatcher_limits", "diff")
    assert exited.value.code == 1
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["api", "smtp"]
    assert "keys that templates have made, 1 differ" in out
    printed("apply", "--existing")
    assert printed("diff", "--existing") == "The database has what the settings say.\n"


def test_apply_writes_what_differs_and_makes_what_is_missing() -> None:
    stored("api").delete()
    assert {name: item["done"] for name, item in items("apply").items()} == {"api": "written", "smtp": "written"}
    assert stored("smtp").concurrency == 2
    assert stored("api").rate_limit == 100
    assert [*KeyChange.objects.values_list("key", "verb", "source")] == [("smtp", "limit", "settings")]
    assert states("show") == {"api": "same", "smtp": "same", "tenant:a": "differs"}


def test_a_dry_run_writes_nothing() -> None:
    assert "would be written" in printed("apply", "--dry-run")
    assert stored("smtp").concurrency == 9
    assert not KeyChange.objects.exists()


def test_what_was_changed_at_run_time_is_left() -> None:
    api.limit("smtp", {"concurrency": 4}, by="ada")
    reply = printed("apply")
    assert "is left unless the key is named, or with --force" in reply
    assert stored("smtp").concurrency == 4
    assert stored("api").rate_limit == 100


@pytest.mark.parametrize("args", [["--force"], ["smtp"]])
def test_what_was_changed_at_run_time_is_written_when_asked(args: list[str]) -> None:
    api.limit("smtp", {"concurrency": 4}, by="ada")
    printed("apply", *args)
    assert stored("smtp").concurrency == 2
    assert (stored("api").rate_limit == 100) == (args == ["--force"])


def test_what_the_settings_have_written_they_write_again(settings: Settings) -> None:
    api.limit("smtp", {"concurrency": 4}, by="ada")
    printed("apply", "smtp")
    settings.DISPATCHER = {"keys": {**KEYS, "smtp": {"concurrency": 3}}}
    assert items("apply")["smtp"]["done"] == "written"
    assert stored("smtp").concurrency == 3


@pytest.mark.parametrize("args", [["--existing"], ["tenant:a"]])
def test_templates_reach_keys_that_exist_only_when_asked(args: list[str]) -> None:
    printed("apply")
    assert stored("tenant:a").concurrency == 4
    printed("apply", *args)
    key = stored("tenant:a")
    assert (key.concurrency, key.is_from_template) == (2, True)


def test_all_of_a_policy_is_compared_and_written(settings: Settings) -> None:
    policy = {"concurrency": 2, "throttle": "5/s", "fair_by": "tenant:*", "weight": 3, "observe": True}
    settings.DISPATCHER = {"keys": {"smtp": policy}}
    printed("apply")
    assert states("show")["smtp"] == "same"
    key = stored("smtp")
    assert (key.throttle_limit, key.fair_by, key.weight, key.is_observed) == (5, "tenant:*", 3, True)
    settings.DISPATCHER = {"keys": KEYS}
    printed("apply")
    assert not stored("smtp").is_observed


def test_calls_that_never_fit_are_named() -> None:
    api.pause("smtp")
    CallQueue.objects.send("t", keys={"smtp": 5})
    assert "smtp: 1 waiting calls cost more than the limits ever allow" in printed("apply")


def test_an_unknown_key_is_refused_with_similar_names() -> None:
    with pytest.raises(CommandError, match=r"no rate limit key 'smpt'. Did you mean smtp\?"):
        printed("apply", "smpt")


def test_a_policy_that_is_wrong_is_named(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"smtp": {"concurrency": -1}}}
    with pytest.raises(CommandError, match=r"DISPATCHER\['keys'\]\['smtp'\].concurrency"):
        printed("diff")


def test_a_dry_run_is_of_apply_alone() -> None:
    with pytest.raises(CommandError, match="--dry-run and --force are for apply"):
        printed("show", "--dry-run")


def test_an_override_is_shown_beside_the_keys_own_limits() -> None:
    api.override("smtp", until=sql.now() + timedelta(hours=1), concurrency=1)
    assert items("show")["smtp"]["override_expires_at"] is not None
    assert "overridden until" in printed("show")
