"""manage.py dispatcher_tasks: each task of the project, with its keys and how it is retried."""

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from celery import Celery, Task
from django.core.management import call_command

from project.celery import app as project_app

pytestmark = pytest.mark.django


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("shop")
    made.set_current()
    yield made
    project_app.set_current()


def listed(*options: str) -> str:
    out = StringIO()
    call_command("dispatcher_tasks", *options, stdout=out)
    return out.getvalue()


@pytest.fixture
def tasks(app: Celery, settings: Any) -> None:
    def charge(self: Task, user: int) -> None:
        self.retry()

    def swap(self: Task) -> None:
        self.replace(None)

    def plain() -> None: ...

    app.task(charge, name="shop.charge", bind=True, max_retries=5, shared=False)
    app.task(swap, name="shop.swap", bind=True, autoretry_for=(OSError,), acks_late=True, shared=False)
    app.task(plain, name="free.plain", serializer="pickle", rate_limit="5/m", shared=False)
    app.task(plain, name="shop.computed", shared=False)
    settings.DISPATCHER = {
        "keys": {"api": {}, "tenant:*": {}},
        "tasks": {"shop.charge": ["api", "tenant:{user}"], "shop.computed": lambda **_: ["api"], "shop.*": []},
    }


def test_each_task_is_listed_with_its_keys_retries_and_what_is_not_limited(tasks: None) -> None:
    found = {each.pop("task"): each for each in json.loads(listed("--json"))}
    assert found["shop.charge"] == {
        "keys": ["api", "tenant:{user}"],
        "retries": "self.retry, up to 5 times",
        "not_limited": [],
    }
    assert found["shop.swap"] == {
        "keys": [],
        "retries": "after OSError, up to 3 times; after a lost process",
        "not_limited": [],
    }
    assert found["shop.computed"]["keys"] == ["by its arguments"]
    assert found["free.plain"]["keys"] is None
    assert found["free.plain"]["retries"] == "one attempt"
    assert len(found["free.plain"]["not_limited"]) == 2
    assert not [name for name in found if name.startswith(("celery.", "dispatcher."))]


def test_a_rate_limit_that_is_global_is_a_key(tasks: None, settings: Any) -> None:
    settings.DISPATCHER = {"celery_rate_limits": "global"}
    (found,) = (each for each in json.loads(listed("--json")) if each["task"] == "free.plain")
    assert (found["keys"], found["not_limited"]) == (["task:free.plain"], ["serializer pickle is refused"])


def test_the_table_has_a_line_for_each_task(tasks: None) -> None:
    lines = listed().splitlines()
    assert lines[0].split() == ["Task", "Keys", "Retries", "Not", "limited"]
    found = {line.split()[0]: line for line in lines[1:]}
    assert found["shop.charge"].index("api, ") == lines[0].index("Keys")
    assert {"free.plain", "shop.charge", "shop.computed", "shop.swap"} <= set(found)
    assert "api, tenant:{user}" in found["shop.charge"]
    assert "not limited" in found["free.plain"]
