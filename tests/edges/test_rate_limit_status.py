"""manage.py rate_limit_status: what it prints of which keys, as text and as JSON."""

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_keys() -> None:
    RateLimitKey.objects.all().delete()


def printed(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("rate_limit_status", *args, stdout=out, **options)
    return out.getvalue()


def test_without_keys_it_says_how_to_declare_one() -> None:
    assert "RateLimitKey.objects.declare(" in printed()


def test_each_key_has_a_line_with_its_use_and_what_waits() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    RateLimitKey.objects.declare("mail", rate=(5, 60))
    for key in ("api", "api", "mail"):
        CallQueue.objects.send("t", keys=[key])
    lines = {line.split()[0]: line for line in printed().splitlines()}
    assert lines["api"].split()[1:4] == ["at", "limit", "1/1"]
    assert "1/5 in 1m" in lines["mail"]
    assert " 1 " in lines["api"]


def test_a_key_is_told_in_full() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    CallQueue.objects.send("t", keys=["api"])
    told = printed("--key", "api")
    assert told.startswith("api: open")
    assert "1 of 2: 0 running, 1 on the way to a worker" in told


def test_a_pause_is_told() -> None:
    RateLimitKey.objects.declare("api")
    engine.pause("api")
    assert "api: paused" in printed("--key", "api")


def test_json_has_the_shape_of_the_open_job_spec() -> None:
    RateLimitKey.objects.declare("api", concurrency=1, rate=(5, 60), throttle=(10, 1))
    for _ in range(2):
        CallQueue.objects.send("t", keys=["api"])
    (item,) = json.loads(printed("--json"))["items"]
    assert item["key"] == "api"
    assert item["state"] == "at_limit"
    assert item["stopped_by"][0] == "concurrency"
    assert item["concurrency"] == {"limit": 1, "active": 1, "available": 0}
    assert (item["rate"]["limit"], item["rate"]["period"], item["rate"]["current_count"]) == (5, "PT1M", 1)
    assert (item["throttle"]["limit"], item["throttle"]["period"]) == (10, "PT1S")
    assert item["waiting_count"] == 1


def test_a_key_that_does_not_exist_is_named_with_one_that_is_close() -> None:
    RateLimitKey.objects.declare("api.stripe.com")
    with pytest.raises(CommandError, match=r"no rate limit key 'api.strip.com'. Did you mean api.stripe.com\?"):
        printed("--key", "api.strip.com")


def test_watching_takes_a_time_that_passes() -> None:
    with pytest.raises(CommandError, match="more than 0"):
        printed("--watch", "0")


def test_ten_thousand_keys_are_reported_by_one_statement_and_right() -> None:
    RateLimitKey.objects.bulk_create(RateLimitKey(name=f"k{number}", concurrency=number) for number in range(10_000))
    CallQueue.objects.send("t", keys=["k7"])
    CallQueue.objects.send("t", keys=["k0"])
    with CaptureQueriesContext(connection) as queries:
        items = {item["key"]: item for item in json.loads(printed("--json"))["items"]}
    # The one statement goes past Django's cursor; none may go through it.
    assert not queries.captured_queries
    assert len(items) == 10_000
    assert items["k7"]["concurrency"] == {"limit": 7, "active": 1, "available": 6}
    assert items["k0"]["waiting_count"] == 1
    assert items["k9999"]["concurrency"]["available"] == 9_999
