"""The Python of the documentation runs, page by page; a block that cannot run gives the reason in the page.

The reason is a comment on the line before the block: `<!-- not run: it needs a provider -->`.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.core.management import get_commands, load_command_class
from django.db import connection
from pytest_django import Settings

from dispatcher import limited as limits
from dispatcher.conf import conf
from dispatcher.models import CallQueue, RateLimitKey
from project.celery import app as project_app
from tests.builders import committed
from tests.contracts.source import ROOT, blocks

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n)?(?P<indent> *)```python\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"manage\.py (?P<name>\w+)(?P<options>[^`#\n]*)")
KEYS = ("api.stripe.com", "api.example.com", "partner", "llm:requests", "llm:tokens", "slow", "mail")
"""Keys that the pages use without declaring them."""


def python_blocks(path: Path) -> list[re.Match[str]]:
    """Return the blocks of Python of a page."""
    return list(BLOCK.finditer(path.read_text()))


# The README's blocks are files of a project, which tests/flows/test_first_steps.py writes and runs.
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if python_blocks(path)]
MARKS = {"open-job-spec": [pytest.mark.django_db, pytest.mark.ojs], "transactions": [committed]}
page = pytest.mark.parametrize(
    "page",
    [pytest.param(path, marks=MARKS.get(path.stem, [pytest.mark.django_db])) for path in PAGES],
    ids=[str(path.relative_to(ROOT)) for path in PAGES],
)


def module(name: str, **members: object) -> ModuleType:
    """Return a module with these members."""
    made = ModuleType(name)
    vars(made).update(members)
    return made


def nothing(*_args: object, **_kwargs: object) -> None:
    """Do nothing: the body of every task."""


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return a Celery app whose broker is in this process."""
    made = Celery("shop", task_cls="dispatcher.celery:DispatchedTask")
    made.conf.update(broker_read_url="memory://", broker_write_url="memory://", task_ignore_result=True)
    made.set_current()
    yield made
    project_app.set_current()


@pytest.fixture
def reader_names(monkeypatch: pytest.MonkeyPatch, settings: Settings, app: Celery) -> dict[str, Any]:
    """Return the names and modules that the pages use without defining them."""
    monkeypatch.setattr(limits, "_decorated", [])
    settings.DISPATCHER = {"keys": {name: {} for name in KEYS} | {"tenant:*": {}}}

    def task(name: str) -> Any:
        return app.task(nothing, name=name)

    orders = module("orders.tasks", **{name: task(f"orders.tasks.{name}") for name in ("charge", "remind", "sync")})
    chat = module("chat.tasks", complete=task("chat.tasks.complete"))
    for made in (module("orders"), orders, module("chat"), chat, module("shop"), module("shop.celery", app=app)):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    return {
        "__name__": "shop.examples",
        "order": SimpleNamespace(pk=7),
        "tenant": SimpleNamespace(slug="acme"),
        "prompt": SimpleNamespace(pk=1),
        "page": 1,
        "CallQueue": CallQueue,
        "charge": orders.charge,  # type: ignore[attr-defined]
        "DATABASES": {"default": dict(django_settings.DATABASES["default"])},
        "INSTALLED_APPS": list(django_settings.INSTALLED_APPS),
        "urlpatterns": [],
        "path": lambda *_: None,
    }


@page
def test_the_python_of_a_page_runs(page: Path, reader_names: dict[str, Any], settings: Settings) -> None:
    if not re.search(r'declare\(|"keys": \{', page.read_text()):
        for name in KEYS:
            RateLimitKey.objects.declare(name)
    names = reader_names | {"call": CallQueue.objects.send("orders.tasks.charge", args=[7])}
    for block in python_blocks(page):
        if block["reason"]:
            continue
        line = page.read_text()[: block.start("code")].count("\n")
        code = "\n" * line + textwrap.dedent(block["code"])
        exec(compile(code, str(page), "exec"), names)  # noqa: S102 -- the page is ours
        if "DISPATCHER = " in code:
            settings.DISPATCHER = names["DISPATCHER"]
            conf()


@pytest.mark.django_db
def test_the_queries_of_the_pages_run() -> None:
    queries = [query for path in sorted((ROOT / "docs").rglob("*.md")) for query in blocks(path.read_text(), "sql")]
    selects = [query for query in queries if query.startswith("SELECT")]
    assert len(selects) >= 3
    with connection.cursor() as cursor:
        for query in selects:
            cursor.execute(query)


def test_a_block_that_does_not_run_gives_a_reason_and_is_rare() -> None:
    written = [block for path in PAGES for block in python_blocks(path)]
    left_out = [block["reason"] for block in written if block["reason"] is not None]
    assert all(left_out)
    assert len(left_out) * 10 <= len(written)


@pytest.mark.ojs
def test_every_option_of_a_command_exists() -> None:
    named = set()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for found in COMMAND.finditer(path.read_text()):
            name, app = found["name"], str(get_commands().get(found["name"]))
            if app.startswith("dispatcher"):
                named.add(name)
                parser = load_command_class(app, name).create_parser("manage.py", name)
                known = {option for action in parser._actions for option in action.option_strings}  # noqa: SLF001
                unknown = set(re.findall(r"(?<!\S)--[\w-]+", found["options"])) - known
                assert not unknown, f"{path}: {name} has no {unknown}"
    assert named == {
        "rate_limit_status",
        "dispatcher_audit",
        "dispatcher_limits",
        "dispatcher_tasks",
        "explain_take",
        "dispatcher_token",
    }
