"""Plans of workflows that are refused: what is checked is what would start."""

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.models import CallQueue
from dispatcher.ojs.models import Workflow
from dispatcher.ojs.views import workflows
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]

JOB: dict[str, Any] = {"type": "a", "args": []}


@pytest.mark.parametrize("kind", ["chain", "group", "batch"])
@pytest.mark.parametrize(
    "inner",
    [
        {"steps": [{**JOB, "queue": "theirs"}]},
        {"steps": [1]},
        {"steps": None},
        {"jobs": "x"},
        {"jobs": [JOB], "callbacks": 3},
        {"jobs": [JOB] * 1_001},
    ],
    ids=["queue", "steps", "null", "jobs", "callbacks", "many"],
)
def test_a_step_of_a_graph_is_a_job_and_no_workflow(
    holder: Callable[..., Api], kind: str, inner: dict[str, Any]
) -> None:
    steps = [{"id": "first", **JOB}, {"id": "then", "depends_on": ["first"], "args": [], "type": kind, **inner}]
    api = holder("send:default")
    error = api.post("/workflows", {"name": "graph", "steps": steps}, status=400)["error"]
    assert (error["code"], "$.steps[1].type" in error["message"]) == ("invalid_workflow", True)
    assert not Workflow.objects.exists()
    assert not CallQueue.objects.exists()


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"type": "group", "jobs": [JOB], "callbacks": 3}, "callbacks"),
        ({"type": "batch", "jobs": [JOB], "callbacks": {"on_complete": 3}}, "callbacks"),
        ({"type": "group", "jobs": "x"}, "jobs"),
        ({"type": "group", "jobs": None}, "jobs"),
        ({"type": "chain", "steps": [1]}, "steps"),
        ({"type": "chain", "steps": {}}, "steps"),
        ({"type": 3, "steps": [JOB]}, "type"),
        ({"type": ["chain"], "steps": [JOB]}, "type"),
        ({"type": None, "steps": [JOB]}, "type"),
        ({"steps": [JOB]}, "type"),
    ],
)
def test_a_workflow_in_a_workflow_with_a_wrong_field_is_refused_by_its_path(
    holder: Callable[..., Api], part: dict[str, Any], path: str
) -> None:
    api = holder("send")
    for plan, where in (
        ({"type": "chain", "steps": [JOB, part]}, "$.steps[1]"),
        ({"type": "batch", "jobs": [JOB], "callbacks": {"on_complete": part}}, "$.callbacks.on_complete"),
    ):
        error = api.post("/workflows", plan, status=400)["error"]
        assert (error["code"], f"{where}.{path}" in error["message"]) == ("invalid_workflow", True), error
    assert not Workflow.objects.exists()


@pytest.mark.parametrize(
    "plan",
    [
        {"type": "group", "jobs": [JOB] * 1_001},
        {"type": "group", "jobs": [{"type": "group", "jobs": [JOB] * 500}] * 3},
        {"steps": [{"id": str(number), **JOB} for number in range(1_001)]},
    ],
    ids=["flat", "nested", "graph"],
)
def test_a_plan_of_too_many_jobs_is_refused_before_one_is_checked(
    holder: Callable[..., Api], monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]
) -> None:
    monkeypatch.setattr(workflows, "JobIn", None)
    error = holder("send").post("/workflows", plan, status=400)["error"]
    assert "$ has more than 1000 jobs." in error["message"]
