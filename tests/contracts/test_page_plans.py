"""What people look at costs what a page shows: the rows that pages read, in tables that are full and skewed."""

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dispatcher.lifecycle import retention
from dispatcher.lifecycle.retention import old
from tests.builders import at
from tests.contracts.pages import full, too_much

pytestmark = pytest.mark.server

ADMIN: Final = [
    "callqueue/",
    *(f"callqueue/?state={state}" for state in ("available", "oversized", "scheduled", "retryable", "pending")),
    *(f"callqueue/?state={state}" for state in ("dispatched", "active", "completed", "cancelled", "discarded")),
    "callqueue/?state=completed&p=100",
    *(f"callqueue/?reason={reason}" for reason in ("failed", "poison", "expired")),
    *(f"callqueue/?q={sought}" for sought in ("key:5", "key:1", "rare", "rare&state=completed")),
    "callqueue/?o=2",
    f"callqueue/{UUID(int=0x7000_8000_0000_0000_0001)}/change/",
    *("ratelimitkey/", "ratelimitkey/?is_paused__exact=1", "ratelimitkey/1/change/"),
    *("queue/", "worker/"),
]


@pytest.fixture(scope="module", autouse=True)
def _full(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), full():
        yield


@pytest.mark.django_db(transaction=False)
def test_a_page_of_the_admin_reads_a_bounded_number_of_rows() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))

    def look(page: str) -> None:
        assert client.get(f"/admin/dispatcher/{page}").status_code == 200, page

    offenders = [f"{page} reads too much:\n{plan}" for page in ADMIN for plan in too_much(lambda page=page: look(page))]
    assert not offenders, "\n".join(offenders)


@pytest.mark.django_db(transaction=False)
def test_a_cleanup_of_calls_reads_what_it_deletes(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.DISPATCHER = {"cleanup_budget": 0}
    monkeypatch.setattr(old, "_BATCH", 100)
    deleted: list[int] = []
    assert too_much(lambda: deleted.append(retention.delete_ended(now=at(100 * 86_400))), 300) == []
    # Fifty that were discarded, and a batch of those that completed.
    assert deleted == [150]
