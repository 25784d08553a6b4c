"""The history of keys: who changed what, by which way."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from pytest_django import Settings

from dispatcher import api, sql
from dispatcher.errors import KeyNotFound
from dispatcher.history import Actor
from dispatcher.lifecycle import retention
from dispatcher.models import KeyChange, RateLimitKey
from tests.edges.pages import KEYS, act, post

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


@pytest.fixture(autouse=True)
def _declared(settings: Settings) -> None:
    """Declare a key; no event log is kept."""
    settings.DISPATCHER = {}
    RateLimitKey.objects.declare("api", concurrency=5)


def written() -> list[tuple[Any, ...]]:
    """Return the changes, oldest first."""
    return [*KeyChange.objects.order_by("id").values_list("verb", "actor", "source", "before", "after")]


def test_each_verb_is_recorded_with_its_actor_and_what_it_changed() -> None:
    until = sql.now() + timedelta(hours=1)
    api.limit("api", {"concurrency": 3, "rate": (9, 60)}, by="ada")
    api.override("api", until=until, concurrency=0, by=Actor(name="bob", source="admin"))
    api.end_override("api", by="bob")
    api.pause("api", by="eve")
    api.resume("api")
    api.block("api", 60, by="eve")
    change = written()
    assert [each[:3] for each in change] == [
        ("limit", "ada", "python"),
        ("override", "bob", "admin"),
        ("end_override", "bob", "python"),
        ("pause", "eve", "python"),
        ("resume", "", "python"),
        ("block", "eve", "python"),
    ]
    assert change[0][3:] == (
        {"concurrency": 5, "rate_limit": None, "rate_period": None},
        {"concurrency": 3, "rate_limit": 9, "rate_period": "PT1M"},
    )
    assert change[1][4]["override_until"] == until.isoformat()
    assert change[3][3:] == ({"is_paused": False}, {"is_paused": True})
    assert change[5][3] == {"blocked_until": None}
    assert set(KeyChange.objects.values_list("key", flat=True)) == {"api"}


def test_what_changes_nothing_or_is_rolled_back_is_not_recorded() -> None:
    api.resume("api")
    api.end_override("api")
    with pytest.raises(KeyNotFound):
        api.pause("unknown")
    with transaction.atomic():
        api.pause("api", by="ada")
        transaction.set_rollback(True)
    assert written() == []
    assert not RateLimitKey.objects.get(name="api").is_paused


def test_what_people_do_in_the_admin_is_recorded_with_their_names(client: Client) -> None:
    client.force_login(User.objects.create_superuser("ada"))
    key = RateLimitKey.objects.get(name="api")
    act(client, KEYS, "pause", key)
    post(client, key, name="api", concurrency="7")
    assert written() == [
        ("pause", "ada", "admin", {"is_paused": False}, {"is_paused": True}),
        ("limit", "ada", "admin", {"concurrency": 5}, {"concurrency": 7}),
    ]


def test_changes_are_deleted_when_they_have_been_kept_for_long_enough(settings: Settings) -> None:
    api.pause("api")
    later = sql.now() + timedelta(days=367)
    settings.DISPATCHER = {"change_retention": None}
    assert retention.delete_changes(now=later) == 0
    settings.DISPATCHER = {}
    assert retention.delete_changes(now=sql.now()) == 0
    assert retention.delete_changes(now=later) == 1
    assert written() == []
