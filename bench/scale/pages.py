"""What people look at: the commands and the admin's pages."""

import io
from collections.abc import Callable, Iterator
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client, RequestFactory
from django.urls import reverse

from bench.figures import ensure
from bench.scale.calls import send, sent
from bench.scale.compare import PER_PAGE, Operation, Page, Task
from bench.scale.systems import System
from dispatcher import api
from dispatcher.audit import audit
from dispatcher.models import CallQueue, RateLimitKey

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

SEARCHES = {
    "callqueue": {"a task": "bench.scale.tasks.task_1", "a key": "tenant:3", "a queue's key": "queue:q00"},
    "ratelimitkey": {"a name": "tenant", "a name that is none": "nowhere"},
    "eventlogentry": {"a key": "tenant:3", "a queue": "q00", "what is none": "nowhere"},
    "worker": {"a host": "host7"},
    "pullworker": {"a name": "worker-7"},
}
"""The models whose rows grow with the system, and what people search for on their pages."""
CHOICES = 10
"""How many choices of a filter of calls are looked at; of other models two, which take what all others do."""
CHOSEN = 50
"""How many rows an action is for: a page of calls."""
TENANTS = 10
"""How many tenants they are of."""


def commands() -> Iterator[Task]:
    """Yield the commands; one that reads all of a system is compared per row that it reads."""
    yield Page("rate_limit_status --key", do=lambda _: _command("rate_limit_status", names=["tenant:2", "tenant:3"]))
    yield Operation(
        "rate_limit_status of all keys",
        do=lambda _: _command("rate_limit_status", is_json=True),
        bound=PER_PAGE,
        share=lambda system: system.size.tenants / 1_000,
        unit="ms/1k keys",
    )
    yield Operation(
        "audit",
        do=lambda _: audit(settle=None, pause=lambda _: None),
        bound=PER_PAGE,
        share=lambda system: (system.size.waiting + system.size.ended) / 1_000,
        unit="ms/1k rows",
    )
    yield Page("dispatcher_token --list", do=lambda _: _command("dispatcher_token", list=True))


def admin_lists() -> Iterator[Task]:
    """Yield the other lists of the admin: as they open, and by columns, filters and searches where they grow."""
    yield Page("admin: index", do=_visit(reverse("admin:index")))
    for model, page in admin.site._registry.items():  # noqa: SLF001 -- what there is to look at
        if model._meta.app_label.startswith("dispatcher") and model is not CallQueue:
            yield from _list(model.__name__, page)


def admin_calls() -> Iterator[Task]:
    """Yield the list of calls as it opens, by each column, filter and search that it offers."""
    yield from _list(CallQueue.__name__, admin.site._registry[CallQueue])  # noqa: SLF001


def admin_pages() -> Iterator[Task]:
    """Yield the pages of single rows, and actions."""
    yield Page("admin: a call that waits", do=_get, prepare=lambda system: _url("callqueue", sent(system)[0]))
    for state in ("active", "completed", "discarded"):
        yield Page(f"admin: a call, {state}", do=_get, prepare=partial(_a_call, state=state))
    for name in ("tenant:1", "tenant:2", "tenant:3"):
        yield Page(f"admin: the key {name}", do=_get, prepare=partial(_a_key, name=name))
    chosen = {"action": "cancel"}
    yield Operation(
        f"admin: cancel of {CHOSEN} chosen calls",
        prepare=_sent,
        do=lambda calls: _post("callqueue", {**chosen, "_selected_action": [str(call) for call in calls]}),
        bound=PER_PAGE,
    )


def bulk_orders() -> Iterator[Task]:
    """Yield what people order for many calls at once, and for whole queues."""
    yield Operation(f"cancel of {CHOSEN} calls", prepare=_sent, do=api.cancel)
    yield Operation(f"retry of {CHOSEN} calls", prepare=_cancelled, do=api.retry)
    yield Operation(f"run_now of {CHOSEN} calls", prepare=_sent, do=api.run_now)


def _list(name: str, page: "ModelAdmin[Any]") -> Iterator[Task]:
    model = page.model._meta.model_name or ""
    url = reverse(f"admin:{page.model._meta.app_label}_{model}_changelist")
    yield Page(f"admin: {name} list", do=_visit(url))
    request = RequestFactory().get(url)
    request.user = get_user_model()(is_superuser=True, is_active=True)
    page_of = page.get_changelist_instance(request)
    sorted_by = page.get_sortable_by(request)
    if model not in SEARCHES:
        return
    for number, column in enumerate(page_of.list_display):
        if column in sorted_by and page_of.get_ordering_field(column):
            yield Page(f"admin: {name} list by {column}", do=_visit(f"{url}?o={number}"))
    for spec in page_of.filter_specs:
        for choice in list(spec.choices(page_of))[1 : 1 + (CHOICES if model == "callqueue" else 2)]:
            yield Page(
                f"admin: {name} list, {spec.title} {choice['display']}", do=_visit(f"{url}{choice['query_string']}")
            )
    for what, term in SEARCHES[model].items():
        yield Page(f"admin: {name} list, search for {what}", do=_visit(f"{url}?q={term}"))
    if model == "callqueue":
        yield Page(f"admin: {name} list, its last page", do=_visit(f"{url}?p=10"))


def _visit(url: str) -> Callable[[object], None]:
    return lambda _: _get(url)


@cache
def _client() -> Client:
    """Return a client that is logged in as a person who may do everything."""
    client, people = Client(headers={"host": "localhost"}), get_user_model().objects
    client.force_login(people.filter(username="admin").first() or people.create_superuser("admin"))
    return client


forget_client = _client.cache_clear
"""Log in again: the databases have changed."""


def _get(url: str) -> None:
    status = _client().get(url).status_code
    ensure(status == HTTPStatus.OK, f"{url}: {status}")


def _post(model: str, form: dict[str, Any]) -> None:
    status = _client().post(reverse(f"admin:dispatcher_{model}_changelist"), form).status_code
    ensure(status == HTTPStatus.FOUND, f"{form['action']}: {status}")


def _url(model: str, pk: object) -> str:
    return reverse(f"admin:dispatcher_{model}_change", args=[pk])


def _a_call(system: System, *, state: str) -> str:
    calls = CallQueue.objects.using(system.alias).filter(state=state)
    return _url("callqueue", calls.values_list("pk", flat=True)[:1][0])


def _a_key(system: System, *, name: str) -> str:
    return _url("ratelimitkey", RateLimitKey.objects.using(system.alias).get(name=name).pk)


def _sent(_: System) -> list[Any]:
    """Return new calls of the same tenants in both systems: what a move costs grows with the lanes it touches."""
    return [send(f"tenant:{3 + 4 * (number % TENANTS)}").id for number in range(CHOSEN)]


def _cancelled(system: System) -> list[Any]:
    calls = _sent(system)
    api.cancel(calls)
    return calls


def _command(name: str, **options: Any) -> None:
    call_command(name, stdout=io.StringIO(), **options)
