"""Groups over HTTP."""

import json
from collections.abc import Callable

import pytest

from dispatcher.models import CallQueue, RateLimitKey
from tests.ojs.http_client import Api, error_of

pytestmark = pytest.mark.django_db(transaction=True)

PATTERN = "egress:*"


@pytest.fixture(autouse=True)
def _two_members() -> None:
    RateLimitKey.objects.all().delete()
    for name in ("egress:1", "egress:2"):
        RateLimitKey.objects.declare(name, concurrency=1)


@pytest.mark.parametrize("keys", [[PATTERN], {PATTERN: 1}], ids=["names", "costs"])
def test_a_fetched_job_says_which_key_was_chosen(api: Api, keys: object) -> None:
    for _ in range(3):
        api.push(options={"keys": keys})
    jobs = api.fetch(count=9)
    assert [job["chosen_keys"] for job in jobs] == [{PATTERN: "egress:1"}, {PATTERN: "egress:2"}]
    assert api.get(f"/jobs/{jobs[0]['id']}")["job"]["chosen_keys"] == {PATTERN: "egress:1"}
    api.post("/workers/ack", {"job_id": jobs[1]["id"], "result": None})
    assert [job["chosen_keys"] for job in api.fetch()] == [{PATTERN: "egress:2"}]


@pytest.mark.parametrize("pattern", ["nothing:*", "queue:*", "eg*ress"])
def test_a_pattern_that_can_t_be_used_is_refused(api: Api, pattern: str) -> None:
    refused = api.post("/jobs", {"type": "a", "args": [], "options": {"keys": [pattern]}}, status=400)
    assert pattern in error_of(refused)[1] or "keys" in json.dumps(refused)
    assert not CallQueue.objects.exists()


@pytest.mark.parametrize("pattern", ["token:*", "tok*", "cron:a*"])
def test_a_pattern_that_matches_keys_of_the_dispatcher_needs_the_scope_admin(
    holder: Callable[..., Api], pattern: str
) -> None:
    sender = holder("send")
    job = {"type": "a", "args": [], "options": {"keys": [pattern]}}
    assert error_of(sender.post("/jobs", job, status=403))[0] == "permission_denied"


def test_the_status_of_a_group_is_read_over_http(api: Api) -> None:
    api.push(options={"keys": [PATTERN]})
    assert api.get(f"/rate-limits/{PATTERN}")["members"] == {"total": 2, "open": 2}
