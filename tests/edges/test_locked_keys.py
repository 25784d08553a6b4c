"""A key that another transaction keeps locked: a change of it waits for a bounded time, and then names it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import Client
from pytest_django import Settings

from dispatcher import api
from dispatcher.errors import RowLocked
from dispatcher.models import KeyChange, RateLimitKey
from tests.builders import at
from tests.edges.pages import KEYS, act, post, read
from tests.faults import locked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pooler, pytest.mark.django]

SAID = "Another transaction has locked the rate limit key &#x27;api&#x27;; nothing was changed, after a wait of 0.05 s"
VERBS = {
    "pause": api.pause,
    "resume": api.resume,
    "limit": lambda name: api.limit(name, {"concurrency": 1}),
    "observe": api.observe,
    "override": lambda name: api.override(name, until=at(60), concurrency=1),
    "end_override": api.end_override,
    "declare": lambda name: api.declare(name, {}),
}
each_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())


@pytest.fixture(autouse=True)
def _locked(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a key locked, which a template has made; have people wait for it briefly."""
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 9}}}
    monkeypatch.setattr("dispatcher.sql.PATIENCE", timedelta(seconds=0.05))
    for name in ("api", "free"):
        RateLimitKey.objects.create(name=name, concurrency=5, is_from_template=True)
    with locked("key", "api"):
        yield
    api.pause("api")  # It is free again.


def bound() -> str:
    """Return how long the transaction's statements wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


@each_verb
def test_a_verb_names_the_key_and_changes_nothing(verb: Callable[[str], Any]) -> None:
    with pytest.raises(
        RowLocked, match=r"has locked the rate limit key 'api'; nothing was changed, after a wait of 0\.05 s"
    ):
        verb("api")
    assert not KeyChange.objects.exists()


@each_verb
def test_the_rest_of_the_callers_transaction_is_kept_and_its_own_bound_stands(verb: Callable[[str], Any]) -> None:
    for own in ("0", "20ms"):
        with transaction.atomic():
            connection.cursor().execute("SELECT set_config('lock_timeout', %s, true)", [own])
            verb("free")
            with pytest.raises(RowLocked):
                verb("api")
            assert bound() == own
            RateLimitKey.objects.create(name=f"kept:{own}")
    assert RateLimitKey.objects.filter(name__startswith="kept").count() == 2


def test_the_admin_says_it_on_its_pages(boss: Client) -> None:
    keys = {key.name: key for key in RateLimitKey.objects.all()}
    assert SAID in post(boss, keys["api"], concurrency=7, weight=1)
    page = act(boss, KEYS, "pause", *keys.values())
    assert SAID in page
    assert not RateLimitKey.objects.get(name="api").is_paused
    assert "No key was changed" in act(boss, KEYS, "pause", keys["api"])
    assert "1 key: paused." in act(boss, KEYS, "pause", keys["free"])
    assert "5 at once" in read(boss, KEYS)


def test_the_command_says_it() -> None:
    with pytest.raises(CommandError, match="has locked the rate limit key 'api'"):
        call_command("dispatcher_limits", "apply", "api", "--force")
