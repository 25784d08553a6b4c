"""What runs after a commit: hooks and receivers of signals that fail change nothing for anybody else."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import InterfaceError, OperationalError, connection, transaction
from django.dispatch import Signal
from django.utils import timezone
from kombu import Producer

from dispatcher import api, engine, sql
from dispatcher.conf import conf
from dispatcher.lifecycle import publish
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.signals import call_dropped, policy_ignored
from dispatcher.states import State
from tests.builders import committed, go, key, seen, waiting
from tests.steps.conftest import Broker
from tests.steps.send_variants import SendVariant, every_send_variant

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]


def stumble(number: int = 0, **_: Any) -> None:
    raise RuntimeError(number)


class Stumbling:
    """A receiver that is no function, and so has no name."""

    def __call__(self, **_: Any) -> None:
        raise RuntimeError


@contextmanager
def receivers(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """Connect receivers that fail in every way, and a last one that notes what it was sent."""
    noted: list[dict[str, Any]] = []

    def note(**facts: Any) -> None:
        noted.append(facts)

    failing: list[Callable[..., Any]] = [stumble, partial(stumble, 7), Stumbling(), break_the_transaction]
    for receiver in (*failing, note):
        signal.connect(receiver, weak=False)
    try:
        yield noted
    finally:
        for receiver in (*failing, note):
            signal.disconnect(receiver)


def break_the_transaction(**_: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


# Receivers of signals


def test_receivers_of_a_drop_that_fail_change_nothing_for_the_pass_and_what_comes_after_it() -> None:
    key("api", concurrency=1)
    calls = [waiting("api", on_limit="drop") for _ in range(3)]
    reached: list[str] = []
    with receivers(call_dropped) as noted, transaction.atomic():
        assert go(*calls) == [calls[0].id]
        transaction.on_commit(partial(reached.append, "later hook"))
    assert [facts["call_id"] for facts in noted] == [call.id for call in calls[1:]]
    assert reached == ["later hook"]


@every_send_variant
def test_receivers_of_an_ignored_policy_that_fail_do_not_fail_the_send(send: SendVariant) -> None:
    key("api", concurrency=2)
    with receivers(policy_ignored) as noted:
        call = send(task="t", rate_limit={"key": "api", "concurrency": 3})
    assert [facts["key"] for facts in noted] == ["api"]
    assert seen(call).state == State.DISPATCHED


def test_an_ignored_policy_is_reported_after_the_commit_and_not_after_a_rollback() -> None:
    key("api", concurrency=2)
    with receivers(policy_ignored) as noted:
        with transaction.atomic():
            CallQueue.objects.send("t", rate_limit={"key": "api", "concurrency": 3})
            assert not noted
            transaction.set_rollback(True)
        assert not noted


# Hooks of the engine


def resume() -> None:
    api.resume("api")


def send_in_transaction() -> None:
    CallQueue.objects.send("t", keys=["api"])


@pytest.mark.parametrize("verb", [resume, send_in_transaction])
def test_a_hook_that_fails_is_logged_and_reaches_neither_the_caller_nor_later_hooks(
    verb: Callable[[], None], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key("api")
    send_in_transaction()
    CallQueue.objects.update(state=State.AVAILABLE, ticket=None)
    reached: list[str] = []
    with caplog.at_level(logging.ERROR, logger="dispatcher"), transaction.atomic():
        verb()
        transaction.on_commit(partial(reached.append, "later hook"))
        settings.DISPATCHER = {"nonsense": 1}
    assert reached == ["later hook"]
    logged = [record for record in caplog.records if record.name.startswith("dispatcher")]
    assert logged
    assert all(record.exc_info for record in logged)
    assert "ConfigurationError" in caplog.text


def be_limited(*_: Any, **__: Any) -> None:
    raise SoftTimeLimitExceeded


@pytest.mark.parametrize("send", [send_in_transaction, lambda: CallQueue.objects.send("t")], ids=["written", "alone"])
def test_a_soft_time_limit_reaches_the_task_that_sends(
    send: Callable[[], Any], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    key("api")
    monkeypatch.setattr(Producer, "publish", be_limited)
    with pytest.raises(SoftTimeLimitExceeded):
        send()
    monkeypatch.undo()
    # No fault of the broker: what is left is published next.
    engine.tick(now=timezone.now() + conf().publish_after * 2)
    assert len(broker.take()) == 1


def test_a_statement_that_a_soft_time_limit_breaks_off_after_the_commit_reaches_the_task_as_the_limit() -> None:
    def break_off() -> None:
        try:
            be_limited()
        finally:
            raise OperationalError

    with pytest.raises(SoftTimeLimitExceeded):
        sql.after_commit(break_off)


def test_a_hook_that_fails_while_a_soft_time_limit_is_handled_is_a_failure_of_its_own() -> None:
    try:
        be_limited()
    except SoftTimeLimitExceeded:
        sql.after_commit(stumble)


@pytest.mark.parametrize(("failure", "has_traceback"), [(OperationalError, False), (RuntimeError, True)])
def test_a_hook_that_an_outage_has_failed_is_logged_without_a_traceback(
    failure: type[Exception], *, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise failure("lost")

    sql.after_commit(fail)
    (record,) = (each for each in caplog.records if each.name == "dispatcher.sql")
    assert "lost" in record.getMessage()
    assert bool(record.exc_info) is has_traceback


def test_a_send_whose_publication_can_not_be_noted_returns_the_call(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(*_: Any) -> None:
        raise InterfaceError

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_note", note)
        call = CallQueue.objects.send("t")
    assert (seen(call).state, seen(call).published_at) == (State.DISPATCHED, None)
    assert [message.headers["id"] for message in broker.take()] == [str(call.id)]
    assert "after the commit" in caplog.text
    assert not RateLimitKey.objects.exists()
