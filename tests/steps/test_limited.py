"""Existing tasks under limits: however a task is sent, its call is written, with the keys that are declared for it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task, chain, current_app, group, shared_task, signals, signature, uuid
from celery.app.trace import build_tracer
from celery.result import AsyncResult
from django.apps import apps
from django.core.handlers.base import BaseHandler
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher import limited as limits
from dispatcher.celery import fence, send_task
from dispatcher.errors import CallInvalid, ConfigurationError, UnknownKey
from dispatcher.limited import limited
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from dispatcher.tasks import send as dispatcher_send
from dispatcher.testing import at
from tests import db_admin
from tests.builders import committed
from tests.races.lockstep import DEADLINE, actors
from tests.steps.conftest import Broker, app, make_app

pytestmark = [committed, pytest.mark.celery]


class Own(Task):
    """A base class of a project, with its own apply_async."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Add a header, as projects do."""
        headers = {**(options.pop("headers", None) or {}), "tenant": "acme"}
        return super().apply_async(args, kwargs, headers=headers, **options)


@shared_task(name="mails.send")
def send(to: str = "a", tenant: str = "acme", **more: Any) -> str:
    return to


@shared_task(name="mails.own", base=Own)
def own() -> None: ...


@shared_task(name="mails.late", acks_late=True, time_limit=30, ignore_result=True, priority=5)
def late() -> None: ...


@shared_task(name="free.task")
def free(word: str = "") -> None: ...


@shared_task(name="free.rated")
def rated() -> None: ...


@shared_task(name="decorated.plain")
def decorated() -> None: ...


@shared_task(name="decorated.computed")
def computed(user: int, word: str = "") -> None: ...


@pytest.fixture(autouse=True)
def _declared(settings: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Not for other tests.
    monkeypatch.setattr(limits, "_decorated", [])
    rated.rate_limit = "100/m"
    limited("smtp")(decorated)
    limited(keys=lambda user, **_: {f"tenant:{user % 2}": 2})(computed)
    settings.DISPATCHER = {
        "keys": {"smtp": {"concurrency": 2}, "tenant:*": {"concurrency": 2}},
        "tasks": {"mails.send": ["smtp", "tenant:{tenant}"], "mails.*": ["smtp"]},
        "delivery": {"*": "direct"},
    }
    yield
    rated.rate_limit = None


def keys_of(call: CallQueue) -> list[str]:
    """Return the names of the keys that a call spends."""
    assert call.lane is not None
    return sorted(RateLimitKey.objects.filter(id__in=call.lane.key_ids).values_list("name", flat=True))


def only() -> CallQueue:
    return CallQueue.objects.get()


# Ways to send


WAYS: dict[str, Callable[[], Any]] = {
    "delay": lambda: send.delay("a"),
    "apply_async": lambda: send.apply_async(["a"]),
    "signature": lambda: send.s("a").delay(),
    "send_task": lambda: current_app.send_task("mails.send", ["a"]),
    "by the name's signature": lambda: signature("mails.send", args=["a"], app=current_app).apply_async(),
    "chain": lambda: chain(send.si("a"), send.si("b")).delay(),
    "group": lambda: group(send.si("a")).delay(),
    "delay_on_commit": lambda: send.delay_on_commit("a"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_limited_task_becomes_a_call_however_it_is_sent(way: str, broker: Broker) -> None:
    WAYS[way]()
    call = only()
    assert (call.task, call.args, call.state) == ("mails.send", ["a"], State.AVAILABLE)
    assert keys_of(call) == ["smtp", "tenant:acme"]
    assert broker.take() == []


def test_a_task_without_limits_goes_to_the_broker(broker: Broker) -> None:
    free.delay("x")
    rated.delay()
    assert not CallQueue.objects.exists()
    assert len(broker.take()) == 2


def test_a_call_is_written_in_the_callers_transaction() -> None:
    with transaction.atomic():
        send.delay("a")
        send.delay_on_commit("never")
        transaction.on_commit(lambda: send.delay("never"))
        send.apply_async(["report"], outside=True)
        transaction.set_rollback(True)
    assert only().args == ["report"]


def test_a_view_that_fails_has_sent_with_atomic_requests_only_what_goes_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def view(request: object) -> None:
        send.delay("a")
        send.apply_async(["report"], outside=True)
        raise LookupError

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", value=True)
    with pytest.raises(LookupError):
        BaseHandler().make_view_atomic(view)(None)
    assert only().args == ["report"]


def test_what_an_open_transaction_has_sent_is_not_sent_outside_of_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.sql.PATIENCE", timedelta(seconds=0.05))
    task_id = uuid()
    with transaction.atomic():
        send.apply_async(["a"], task_id=task_id)
        with pytest.raises(CallInvalid, match=r"outside: .* same task_id.* without outside=True"):
            send.apply_async(["a"], task_id=task_id, outside=True)
    assert str(only().id) == task_id
    with transaction.atomic():
        send.apply_async(["a"], task_id=task_id, outside=True)
    assert str(only().id) == task_id


def test_arguments_that_do_not_fit_are_a_type_error_at_the_call_site() -> None:
    with pytest.raises(TypeError):
        computed.delay()
    assert not CallQueue.objects.exists()


def test_names_that_are_numbers_are_written_as_celerys_json_does() -> None:
    send.delay({1: {None: (2, 3)}})
    assert only().args == [{"1": {"null": [2, 3]}}]


# Keys


def test_the_first_name_or_pattern_that_fits_counts_and_a_class_keeps_its_own_apply_async() -> None:
    own.delay()
    assert (keys_of(only()), only().headers) == (["smtp"], {"tenant": "acme"})


def test_a_decorated_task_has_its_keys_and_settings_win(settings: Any) -> None:
    decorated.delay()
    assert keys_of(only()) == ["smtp"]
    settings.DISPATCHER = settings.DISPATCHER | {"tasks": {"decorated.*": ["tenant:x"]}}
    decorated.delay()
    assert keys_of(CallQueue.objects.latest("position")) == ["tenant:x"]


def test_a_function_computes_keys_and_costs_from_the_arguments(settings: Any) -> None:
    computed.delay(5, word="x")
    assert (keys_of(only()), only().costs) == (["tenant:1"], {"tenant:1": 2})


def test_none_takes_a_task_out_and_a_star_takes_all_in(settings: Any, broker: Broker) -> None:
    settings.DISPATCHER = {"tasks": {"free.rated": None, "*": []}}
    rated.delay()
    assert len(broker.take()) == 1
    free.delay()
    assert (only().task, keys_of(only())) == ("free.task", [])


def test_a_router_is_asked_as_celery_asks_its_own(settings: Any, broker: Broker) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        return ["smtp"] if name == "free.task" and list(args) == ["limit"] and task is not None else None

    settings.DISPATCHER = settings.DISPATCHER | {"tasks": [route, {"mails.*": []}]}
    free.delay("no")
    assert not CallQueue.objects.exists()
    free.delay("limit")
    assert keys_of(only()) == ["smtp"]


def test_send_without_keys_spends_those_of_the_task() -> None:
    CallQueue.objects.send(send, args=["a"])
    assert keys_of(only()) == ["smtp", "tenant:acme"]
    CallQueue.objects.send(send, args=["a"], keys=[])
    assert keys_of(CallQueue.objects.latest("position")) == []


def test_a_typo_never_means_unlimited(settings: Any) -> None:
    settings.DISPATCHER = settings.DISPATCHER | {"tasks": {"mails.send": ["smpt"], "free.task": ["tenant:{who}"]}}
    with pytest.raises(UnknownKey, match="smpt"):
        send.delay("a")
    with pytest.raises(CallInvalid, match=r"tenant:\{who\}.*name a parameter") as refused:
        free.delay()
    assert refused.value.field == "keys"


def test_a_rate_limit_of_celery_holds_over_all_workers(settings: Any, broker: Broker) -> None:
    settings.DISPATCHER = settings.DISPATCHER | {"celery_rate_limits": "global"}
    rated.delay()
    assert keys_of(only()) == ["task:free.rated"]
    assert str(RateLimitKey.objects.get(name="task:free.rated").throttle_limit) == "100"
    free.delay()
    assert len(broker.take()) == 1


def test_a_task_with_keys_is_not_run_inside_of_another(settings: Any, broker: Broker) -> None:
    with pytest.raises(CallInvalid, match=r"celery\.starmap would run mails\.send"):
        send.chunks([("a",), ("b",)], 1).apply_async()
    with pytest.raises(CallInvalid, match="send a group"):
        send.map(["a"]).delay()
    settings.DISPATCHER = {"tasks": {"free.rated": [], "free.*": None}}
    rated.map([()]).delay()
    free.chunks([("a",), ("b",)], 1).apply_async()
    assert len(broker.take()) == 3


@pytest.mark.parametrize("wrong", [{}, {"names": ("smtp",), "keys": ["smtp"]}], ids=str)
def test_the_decorator_takes_names_or_keys(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="limited"):
        limited(*wrong.pop("names", ()), **wrong)


def test_the_decorator_is_written_above_that_of_the_task() -> None:
    with pytest.raises(ConfigurationError, match="above"):
        limited("smtp")(lambda: None)


# Options


AT = timezone.now() + timedelta(hours=1)


def test_options_are_kept() -> None:
    link, error, parent = own.s(), free.s(), str(uuid4())
    task_id = uuid()
    send.apply_async(
        ["a"],
        task_id=task_id,
        eta=AT,
        expires=AT + timedelta(hours=1),
        queue="mail",
        priority=7,
        link=link,
        link_error=[error],
        chain=[own.s()],
        chord=own.s(),
        group_id="g",
        group_index=3,
        root_id=parent,
        parent_id=parent,
        shadow="shown",
        headers={"x": 1},
        stamped_headers=["order"],
        order=["a-1"],
        ignore_result=True,
        time_limit=20,
        soft_time_limit=10,
        retry=True,
        retry_policy={"max_retries": 3},
        retries=2,
    )
    call = only()
    assert (str(call.id), call.scheduled_at, call.expires_at) == (task_id, AT, AT + timedelta(hours=1))
    assert (call.queue, call.priority, call.headers) == ("mail", 7, {"x": 1})
    options = dict(call.options)
    for name, wanted in (("link", link), ("link_error", error), ("chain", own.s()), ("chord", own.s())):
        found = options.pop(name)
        assert (found if name == "chord" else found[0])["task"] == wanted.task
    assert options == {
        "group_id": "g",
        "group_index": 3,
        "root_id": parent,
        "parent_id": parent,
        "shadow": "shown",
        "stamped_headers": ["order"],
        "order": ["a-1"],
        "ignore_result": True,
        "time_limit": 20,
        "soft_time_limit": 10,
        "priority": 7,
        "retries": 2,
    }


def test_the_attributes_of_the_task_are_options_that_a_sender_can_take_back() -> None:
    send.delay("a")
    assert only().options is None
    late.apply_async(time_limit=None)
    call = CallQueue.objects.latest("position")
    assert call.options == {"time_limit": None, "priority": 5, "ignore_result": True}


def test_times_without_a_zone_are_celerys() -> None:
    send.apply_async(["a"], eta=AT.replace(tzinfo=None), expires=(AT + timedelta(hours=1)).isoformat())
    assert only().scheduled_at == AT


@pytest.mark.parametrize(
    "options",
    [{"expires": -1}, {"expires": AT - timedelta(days=1)}, {"eta": AT, "expires": AT}, {"expires": 0}],
    ids=["a second ago", "a day ago", "at its eta", "at once"],
)
def test_what_has_expired_is_discarded_as_by_celery(options: dict[str, Any]) -> None:
    send.apply_async(["a"], **options)
    with at(AT + timedelta(hours=1)):
        engine.tick()
    assert (only().state, only().reason) == (State.DISCARDED, "expired")


def test_a_result_that_is_sent_to_its_sender_finds_it() -> None:
    make_app("rpc", backend="rpc://").set_current()
    result = send.delay("a")
    assert only().options == {"reply_to": current_app.thread_oid}
    with current_app.connection_for_read() as connection:
        # Declared at the send: a result that comes earlier is not lost.
        current_app.backend.binding(connection.default_channel).queue_declare(passive=True)
    assert result.id == str(only().id)


def test_with_redis_the_lowest_priority_goes_first() -> None:
    make_app("redis", broker="redis://127.0.0.1:1/0").set_current()
    send.apply_async(["a"], priority=3)
    assert (only().priority, only().options["priority"]) == (-3, 3)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"task_id": "import-7"}, "task_id"),
        ({"task_id": str(uuid4()).upper()}, "task_id"),
        ({"serializer": "pickle"}, "serializer"),
        ({"exchange": "elsewhere"}, "exchange"),
        ({"link": "own"}, "link"),
        ({"typo": 1}, "typo"),
        ({"router": object()}, "router"),
        ({"eta": "tomorrow"}, "eta"),
        ({"expires": "soon"}, "expires"),
    ],
)
def test_an_option_that_a_call_cannot_have_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(CallInvalid) as refused:
        send.apply_async(["a"], **options)
    assert refused.value.field == field
    assert not CallQueue.objects.exists()


def test_receivers_of_celerys_signals_see_the_call_once_and_what_they_add_is_kept() -> None:
    seen: list[str] = []

    def add(sender: str, headers: dict[str, Any], **_: Any) -> None:
        seen.append(sender)
        headers["trace"] = "t-1"

    signals.before_task_publish.connect(add)
    try:
        send.apply_async(["a"], link=own.si(), chain=[own.si()])
    finally:
        signals.before_task_publish.disconnect(add)
    assert (seen, only().headers) == (["mails.send"], {"trace": "t-1"})
    assert [each["task"] for each in (*only().options["link"], *only().options["chain"])] == ["mails.own"] * 2


@pytest.mark.parametrize("scope", [nullcontext, transaction.atomic])
def test_what_is_sent_again_with_its_id_is_one_call(scope: Callable[[], Any]) -> None:
    task_id = uuid()
    for _ in range(2):
        with scope():
            assert send.apply_async(["a"], task_id=task_id).id == task_id
    assert str(only().id) == task_id


def test_what_is_sent_twice_at_once_with_its_id_is_one_call() -> None:
    task_id = uuid()
    with actors(2) as (first, second):
        first.open()
        second.open()
        first.do(send.apply_async, ["a"], task_id=task_id)
        sending = second.begin(send.apply_async, ["b"], task_id=task_id)
        second.wait_blocked(by=first)
        first.commit()
        assert sending.result(DEADLINE).id == task_id
        second.do(send.delay, "kept")
        second.commit()
    assert sorted(CallQueue.objects.values_list("args", flat=True)) == [["a"], ["kept"]]


def test_a_connection_that_was_lost_meanwhile_fails_no_send() -> None:
    send.delay("a")
    with db_admin.connect() as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    send.delay("b")
    assert sorted(CallQueue.objects.values_list("args", flat=True)) == [["a"], ["b"]]


def test_an_app_sends_by_its_own_routes_whatever_app_is_current(broker: Broker) -> None:
    other = make_app("other", task_default_queue="others", task_routes={"mails.own": {"queue": "routed"}})
    app.set_current()
    other.send_task("mails.send", ["a"])
    other.send_task("mails.own")
    assert [*CallQueue.objects.order_by("position").values_list("queue", flat=True)] == ["others", "routed"]
    assert current_app.main == app.main


def test_the_hook_is_put_once_however_often_apps_are_set_up() -> None:
    hooked = Celery.send_task
    apps.get_app_config("dispatcher").ready()
    assert Celery.send_task is hooked


def test_a_task_without_limits_pays_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(self: Celery, name: str, *args: object, **options: object) -> None:
        assert "outside" not in options

    monkeypatch.setattr(Celery, "send_task", plain)
    send_task.hook()
    app.send_task("free.task", outside=True)  # the lookup is cached
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        app.send_task("free.task", (), {}, task_id=None, producer=None, link=None)
    finally:
        sys.setprofile(None)
    assert called == ["send_task", "plain"]


# Messages without a call, and rows of beat


def run_message(message: Any) -> Any:
    """Run the task of a message as a worker does."""
    task = current_app.tasks[message.headers["task"]]
    args, kwargs, embedded = message.payload
    request = {**message.headers, **embedded, "delivery_info": {**message.delivery_info, "priority": 0}}
    return task.__trace__(message.headers["id"], args, kwargs, {**request, "args": args, "kwargs": kwargs})


@pytest.mark.parametrize("mode", ["enqueue", "run"])
def test_a_message_of_an_old_producer_is_enqueued_or_run(settings: Any, broker: Broker, mode: str) -> None:
    declared = settings.DISPATCHER
    settings.DISPATCHER = {}
    sent = send.apply_async(["a"], link=own.si(), headers={"x": 1})
    (message,) = broker.take()
    settings.DISPATCHER = declared | {"unticketed": mode}
    task = current_app.tasks[send.name]
    fence.fence(task)
    task.__trace__ = build_tracer(task.name, task, app=current_app)
    for _ in range(2):
        result, info, *_ = run_message(message)
    calls = CallQueue.objects.filter(task=send.name)
    if mode == "run":
        assert (result, calls.exists()) == ("a", False)
        return
    call = calls.get()
    assert (str(call.id), call.args, call.headers) == (sent.id, ["a"], {"x": 1})
    assert call.options["link"][0]["task"] == own.name
    assert info.state == "IGNORED"


def test_a_task_may_pass_the_headers_of_its_own_message_on() -> None:
    send.apply_async(["a"], headers={"dispatcher_ticket": str(uuid4()), "dispatcher_call": str(uuid4()), "x": 1})
    assert only().headers == {"x": 1}


def test_a_task_that_names_keys_itself_gets_the_result(broker: Broker) -> None:
    @shared_task(name="free.outer")
    def outer() -> list[Any]:
        row = {"task": "free.task", "keys": ["smtp"]}
        return [dispatcher_send.delay(**row), group(dispatcher_send.s(**row)).delay().results[0]]

    found = outer.apply().get()
    assert all(isinstance(each, AsyncResult) for each in found)
    assert {each.id for each in found} == {str(call.id) for call in CallQueue.objects.all()}


def test_a_row_of_beat_names_its_keys_itself(broker: Broker) -> None:
    row = {"task": "free.task", "args": ["x"], "keys": {"smtp": 2}}
    sent = current_app.tasks["dispatcher.send"].apply_async(
        [], row, producer=None, queue="mail", headers={"y": 1}, periodic_task_name="nightly"
    )
    call = only()
    assert (str(call.id), call.task, call.args, call.queue) == (sent.id, "free.task", ["x"], "mail")
    assert (call.costs, call.headers, call.options) == ({"smtp": 2}, {"y": 1}, {"periodic_task_name": "nightly"})
    assert broker.take() == []
