"""manage.py explain_take: what a trip for a key would do, and what each part of it costs; nothing of it stays."""

import io
import re
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from dispatcher.models import CallQueue, LaneSite, Note, Process, Queue, RateLimitKey
from tests.builders import snapshot
from tests.db_admin import connect
from tests.steps.test_functions import role  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django, pytest.mark.server]

NUMBER = r"\d+\.\d+"
PLAN = rf"actual time={NUMBER}"


@pytest.fixture(autouse=True)
def _lanes(transactional_db: None) -> None:
    """Have calls of one key in queues of two deliveries, and a key that no call spends."""
    Queue.objects.create(name="mail", delivery="direct")
    RateLimitKey.objects.declare("api", concurrency=2, rate=(9, 60))
    RateLimitKey.objects.declare("apis")
    Queue.objects.create(name="reports", delivery="broker")
    for queue in ("reports", "mail", "mail", "mail"):
        CallQueue.objects.send("noop", queue=queue, keys=["api"])


def printed(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("explain_take", *args, stdout=out, **options)
    return out.getvalue()


def stored() -> list[list[dict[str, Any]]]:
    rows = [sorted(map(str, model.objects.values())) for model in (LaneSite, Note, Process)]
    return [*snapshot(), *rows]


@pytest.mark.pooler
def test_each_part_of_a_trip_is_shown_with_its_times_and_nothing_of_it_stays() -> None:
    before = stored()
    broker, direct = re.split(r"(?=^direct, )", printed("api", "--room=5"), flags=re.MULTILINE)
    assert stored() == before
    assert re.match(rf"broker, reports: 0 would start; {NUMBER} ms", broker)
    assert re.match(rf"direct, mail: 1 would start; {NUMBER} ms", direct)
    for shown in (broker, direct):
        for part in ("take", "read_notes", "find_lanes", "lock_keys", "choose"):
            assert re.search(rf"^{part} +\d+ +{NUMBER} +{NUMBER}$", shown, re.MULTILINE)
        _, room = shown.split("\nroom: what the key allows\n")
        for table in ("dispatcher_ratelimitkey", "dispatcher_slot", "dispatcher_start"):
            assert re.search(rf"on {table}.*{PLAN}", room)


def test_the_plan_of_each_statement_is_shown_where_the_server_has_the_module_for_it() -> None:
    with connect() as server:
        try:
            server.execute("LOAD 'auto_explain'")
        except psycopg.errors.UndefinedFile:
            assert "where the server has the module auto_explain" in printed("api")
            return
    shown = printed("api")
    for part, table in (("read_notes", "note"), ("find_lanes", "queue"), ("lock_keys", "ratelimitkey")):
        (plan,) = re.findall(rf"^{part}, line \d+: {NUMBER} ms\n((?:.+\n)+)", shown, re.MULTILINE)[:1]
        assert re.search(rf"dispatcher_{table} .*{PLAN}", plan)


def test_a_role_that_is_no_superuser_gets_the_plan_of_the_count_and_what_the_rest_needs(
    role: str,  # noqa: F811
) -> None:
    shown = printed("api")
    assert re.search(rf"on dispatcher_slot.*{PLAN}", shown)
    assert "GRANT SET ON PARAMETER track_functions" in shown
    assert "module auto_explain" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["apj"], r"no rate limit key 'apj'. Did you mean api"),
        (["api", "--room=0"], "a whole number from 1"),
    ],
)
def test_a_key_that_does_not_exist_and_room_for_no_call_are_refused(args: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        printed(*args)


def test_a_key_that_no_call_spends_has_no_trip() -> None:
    assert printed("apis") == "No call that is stored spends the key 'apis'.\n"
