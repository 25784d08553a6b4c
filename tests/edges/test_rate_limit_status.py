"""manage.py rate_limit_status: what it prints of which keys, as text and as JSON."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.celery import periodic
from dispatcher.lifecycle import claim, heartbeat, periodic_runs
from dispatcher.models import CallQueue, PeriodicRun, RateLimitKey, Share
from tests.builders import HERE, held, seen, ticket_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


@pytest.fixture(autouse=True)
def _no_keys() -> None:
    RateLimitKey.objects.all().delete()


def printed(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("rate_limit_status", *args, stdout=out, **options)
    return out.getvalue()


class Terminal(io.StringIO):
    """A terminal, as wide as the environment says."""

    def isatty(self) -> bool:
        """Return whether it is one."""
        return True


def as_json() -> dict[str, Any]:
    return dict(json.loads(printed("--json")))


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


def test_a_terminal_gets_colors_and_lines_that_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "k" * 70
    RateLimitKey.objects.declare(name, concurrency=1)
    terminal, colorless = Terminal(), Terminal()
    call_command("rate_limit_status", stdout=terminal)
    call_command("rate_limit_status", stdout=colorless, no_color=True)
    assert "\x1b[32mopen\x1b[0m" in terminal.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()) == colorless.getvalue()
    header, line, *_ = colorless.getvalue().splitlines()
    assert max(len(header), len(line)) == 60
    assert name in printed()


def test_a_key_is_reported_in_full_with_its_pause() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    CallQueue.objects.send("t", keys=["api"])
    reply = printed("--key", "api")
    assert reply.startswith("api: open")
    assert "1 of 2: 0 running, 1 on the way to a worker" in reply
    api.pause("api")
    assert "api: paused" in printed("--key", "api")


def test_a_key_whose_turns_go_by_share_shows_where_each_share_is() -> None:
    RateLimitKey.objects.declare("api", concurrency=1, fair_by="tenant:*")
    for name, weight in (("tenant:a", 1), ("tenant:b", 4)):
        RateLimitKey.objects.declare(name, weight=weight)
        for _ in range(2):
            CallQueue.objects.send("t", keys=["api", name])
    reply = printed("--key", "api")
    assert "Turns      by tenant:*\n" in reply
    assert "Share      tenant:a: 1 lane waits, weight 1, due\n" in reply
    assert "Share      tenant:b: 1 lane waits, weight 4, due\n" in reply
    clock = next(iter(Share.objects.all()))
    for moved, place in ((200_000, "2.0 behind"), (-100_000, "1.0 ahead")):
        clock.share_id, clock.next = -1, 7_258_118_400_000_000 + moved
        Share.objects.filter(share_id=-1).delete()
        Share.objects.bulk_create([clock])
        assert printed("--key", "api").count(place) == 2


def test_an_observed_key_says_what_its_limits_would_have_delayed() -> None:
    RateLimitKey.objects.declare("api", concurrency=1, throttle=(1, 60), observe=True)
    for _ in range(3):
        call = CallQueue.objects.send("t", keys=["api"])
        claim.claim(call.id, ticket_of(seen(call)), claim_id=uuid4())
    (line,) = [line for line in printed().splitlines() if line.startswith("api")]
    assert line.split()[1:3] == ["observed", "3/1"]
    assert "Would delay" in printed()
    assert re.search("its limits would have delayed 2 calls, the longest by [12] min", printed("--key", "api"))
    (item,) = as_json()["items"]
    assert (item["state"], item["stopped_by"], item["observed"]["delayed"]) == ("observed", [], 2)
    assert re.match("PT1M|PT2M", item["observed"]["longest"])


@pytest.mark.parametrize(("tasks", "words"), [(["other"], "knows task t"), (["t"], "never start, of task t")])
def test_tasks_whose_calls_never_start_are_named(tasks: list[str], words: str) -> None:
    RateLimitKey.objects.declare("api")
    heartbeat.record(replace(HERE, tasks=tasks), [])
    call = CallQueue.objects.send("t")
    for _ in range(3):
        engine.lose([held(call)], RuntimeError("exit 9"), is_crash=True)
    assert f"{words}: 1 call waits." in printed()
    (task,) = as_json()["unstarted_tasks"]
    assert (task["queue"], task["task"], task["returns"], task["known"]) == ("celery", "t", 3, tasks == ["t"])


def test_json_has_the_shape_of_the_open_job_spec() -> None:
    RateLimitKey.objects.declare("api", concurrency=1, rate=(5, 60), throttle=(10, 1))
    for _ in range(2):
        CallQueue.objects.send("t", keys=["api"])
    (item,) = as_json()["items"]
    assert (item["key"], item["state"], item["stopped_by"][0]) == ("api", "at_limit", "concurrency")
    assert item["concurrency"] == {"limit": 1, "active": 1, "available": 0}
    assert (item["rate"]["limit"], item["rate"]["period"], item["rate"]["current_count"]) == (5, "PT1M", 1)
    assert (item["throttle"]["limit"], item["throttle"]["period"]) == (10, "PT1S")
    assert item["waiting_count"] == 1


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--key", "api.strip.com", r"no rate limit key 'api.strip.com'. Did you mean api.stripe.com\?"),
        ("--watch", "0", "more than 0"),
    ],
)
def test_a_key_that_does_not_exist_and_a_time_that_does_not_pass_are_refused(
    option: str, value: str, words: str
) -> None:
    RateLimitKey.objects.declare("api.stripe.com")
    with pytest.raises(CommandError, match=words):
        printed(option, value)


def test_a_thousand_keys_are_reported_by_one_statement_and_right() -> None:
    RateLimitKey.objects.bulk_create(RateLimitKey(name=f"k{number}", concurrency=number) for number in range(1_000))
    CallQueue.objects.send("t", keys=["k7"])
    CallQueue.objects.send("t", keys=["k0"])
    with connection.cursor() as cursor:
        # As autovacuum does within a minute: it may have come last when the table was empty.
        cursor.execute("ANALYZE dispatcher_ratelimitkey")
    with CaptureQueriesContext(connection) as queries:
        items = {item["key"]: item for item in as_json()["items"]}
    # The one statement goes past Django's cursor; none about keys may go through it.
    assert not [query for query in queries.captured_queries if "ratelimitkey" in str(query["sql"])]
    assert len(items) == 1_000
    assert items["k7"]["concurrency"] == {"limit": 7, "active": 1, "available": 6}
    assert items["k0"]["waiting_count"] == 1
    assert items["k999"]["concurrency"]["available"] == 999


def test_of_many_keys_those_that_stop_calls_are_shown_or_those_asked_for() -> None:
    RateLimitKey.objects.bulk_create(RateLimitKey(name=f"tenant:{number:02}") for number in range(60))
    RateLimitKey.objects.declare("zoo", concurrency=0)
    for key in ("zoo", "zoo", "tenant:07"):
        CallQueue.objects.send("t", keys=[key])

    def names(*args: str) -> list[str]:
        return [line.split()[0] for line in printed(*args).splitlines()[1:] if " open " in line or " at limit " in line]

    assert len(names()) == 50
    assert names()[-1] == "zoo"
    assert "11 more keys; see --top, --match and --sort." in printed()
    assert names("--top", "1") == ["zoo"]
    assert names("--match", "tenant:0*") == [f"tenant:{number:02}" for number in range(10)]
    assert names("--match", "[tz]*", "--sort", "in-use", "--top", "1") == ["tenant:07"]
    assert [item["key"] for item in json.loads(printed("--json", "--top", "1", "--sort", "waiting"))["items"]] == [
        "zoo"
    ]
    assert "No key matches nothing*." in printed("--match", "nothing*")


def test_queues_are_shown_with_the_calls_that_could_start() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)
    CallQueue.objects.send("t", queue="held", keys=["api"])
    CallQueue.objects.send("t", queue="mail")
    held, mail = printed("--queues").splitlines()[1:]
    assert (held.split(), mail.split()[:2]) == (["held", "0", "0"], ["mail", "1"])
    held, mail = json.loads(printed("--queues", "--json"))["queues"]
    assert held == {"name": "held", "count": 0, "counts_up_to": 1000, "oldest_since": None, "active": 0}
    assert (mail["count"], mail["oldest_since"] is None) == (1, False)


def test_a_call_is_shown_with_why_it_waits() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)
    waiting, goes = CallQueue.objects.send("t", keys=["api"]), CallQueue.objects.send("t")
    assert printed("--call", str(waiting.id)).startswith("The key api stops its lane; it is the first of its lane.")
    assert printed("--call", str(goes.id)) == "It does not wait: its state is dispatched.\n"
    later = CallQueue.objects.send("t", scheduled_at=datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert printed("--call", str(later.id)) == "It waits for its time, 2999-01-02 03:04:05 UTC.\n"
    with pytest.raises(CommandError, match="There is no call"):
        printed("--call", str(uuid4()))


def test_a_missing_tick_is_warned_of_and_the_last_one_is_shown_with_its_worker() -> None:
    RateLimitKey.objects.declare("api")
    assert printed().count("WARNING: dispatcher.tick has never run. Calls that wait for a time do not start.") == 1
    (tick, recover, cleanup) = as_json()["periodic_tasks"]
    assert tick == {"name": "dispatcher.tick", "last_run_at": None, "worker": None, "is_late": True}
    assert [run["is_late"] for run in (recover, cleanup)] == [False, False]
    periodic.run("dispatcher.tick")
    reply = printed("--key", "api")
    assert "Last tick: just now." in reply
    assert "WARNING" not in reply
    (tick, *_) = as_json()["periodic_tasks"]
    assert tick["is_late"] is False
    assert datetime.fromisoformat(tick["last_run_at"]) > timezone.now() - timedelta(minutes=1)
    worker = replace(HERE, id=uuid4(), name="celery@alone", queues=["dispatcher"])
    heartbeat.record(worker, [])
    PeriodicRun.objects.all().delete()
    periodic_runs.begin(periodic_runs.periodic(), worker=worker.id)
    assert "Last tick: just now, by worker celery@alone without beat." in printed()


def test_each_periodic_task_that_has_not_run_for_long_is_warned_of_with_who_runs_it(settings: Any) -> None:
    for name in ("dispatcher.tick", "dispatcher.recover", "dispatcher.cleanup"):
        PeriodicRun.objects.create(name=name, ran_at=timezone.now() - timedelta(days=18))
    reply = printed()
    assert reply.count("WARNING: dispatcher.") == 3
    assert "Calls of workers that died are not put back. Start a worker: it runs this by itself." in reply
    settings.DISPATCHER = {"fallback_schedule": False}
    assert "not put back. Start beat, and a worker that takes the queue dispatcher." in printed()


def test_a_transaction_that_has_been_open_for_long_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api")
    params = {**connection.get_connection_params(), "autocommit": False, "application_name": "report"}
    with psycopg.connect(**params) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert "transaction" not in printed()
        assert as_json()["old_transactions"] == []
        monkeypatch.setattr("dispatcher.reports.health.OLD_TRANSACTION", timedelta(0))
        session = f"session {other.info.backend_pid}"
        assert f"WARNING: {session} (report, idle in transaction) has had a transaction open for 00:0" in printed()
        found = {each["what"]: each for each in as_json()["old_transactions"]}
        assert (found[session]["application"], found[session]["query"]) == ("report", "SELECT 1")
