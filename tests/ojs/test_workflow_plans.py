"""Plans of workflows that are refused: what is checked is what would start."""

from typing import Any

import pytest

from dispatcher.models import CallQueue
from dispatcher.ojs.models import Workflow
from dispatcher.ojs.views import workflows
from tests.ojs.http_client import Api, Holder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]

JOB: dict[str, Any] = {"type": "a", "args": []}


def job(**options: Any) -> dict[str, Any]:
    return {**JOB, "options": options}


def step(name: str, *before: str, **fields: Any) -> dict[str, Any]:
    return {**JOB, "id": name, "depends_on": [*before], **fields}


def graph(*steps: object, **more: Any) -> dict[str, Any]:
    return {"name": "w", "steps": [*steps], **more}


def chain(*steps: object, **more: Any) -> dict[str, Any]:
    return {"type": "chain", "steps": [*steps], **more}


def group(*jobs: object, **more: Any) -> dict[str, Any]:
    return {"type": "group", "jobs": [*jobs], **more}


def nested(depth: int) -> dict[str, Any]:
    return group(nested(depth - 1) if depth else JOB)


def refused(api: Api, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a plan, of which nothing is kept."""
    error: dict[str, Any] = api.post("/workflows", plan, status=400)["error"]
    assert not Workflow.objects.exists()
    assert not CallQueue.objects.exists()
    return error


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        (graph(step("a"), step("a")), "$.steps[0].id"),
        (graph(JOB), "$.steps[0].id"),
        (graph(step("a", "b")), "$.steps[0].depends_on"),
        (graph(step("a", options={"callback_type": ["on_end"]})), "$.steps[0].options.callback_type"),
        (graph(step("a", "b"), step("b", "a")), "$.steps"),
        (graph(step("a", type="A")), "$.steps[0].type"),
        (graph(step("a", options=7), options={"priority": 1}), "$.steps[0].options"),
        ({"name": "w"}, "$.steps"),
        ({"type": "chain"}, "$.steps"),
        (group(), "$.jobs"),
        (group(JOB, type="batch"), "$.callbacks"),
        (chain(JOB, {"args": []}), "$.steps[1].type"),
        (chain(group({**JOB, "type": "A"})), "$.steps[0].jobs[0].type"),
        (group(JOB, steps=[{}]), "$.steps"),
        (chain(JOB, callbacks={"on_success": JOB}), "$.callbacks"),
        (chain(JOB, options={"queue": "far"}), "$.options"),
        (graph(step("a"), jobs=[JOB]), "$.jobs"),
        (chain(group(JOB, steps=[{}])), "$.steps[0].steps"),
        (chain(group(JOB, name=7)), "$.steps[0].name"),
        (chain(group(JOB, name="w" * 256)), "$.steps[0].name"),
        (chain(group(JOB, type="batch", callbacks=[1])), "$.steps[0].callbacks"),
        (chain(group(7)), "$.steps[0].jobs.0"),
        (chain(JOB, job(keys=["unheard"])), "$.steps[1].options.keys"),
        (chain(JOB, job(rate_limit={"concurrency": 1})), "$.steps[1].options.rate_limit.key"),
    ],
)
def test_a_plan_that_can_t_be_done_is_refused_whole(api: Api, plan: dict[str, Any], path: str) -> None:
    error = refused(api, plan)
    assert (error["code"], error["details"]["validation_errors"][0]["path"]) == ("invalid_workflow", path)


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (chain(JOB, name="w" * 256), "name"),
        (group(JOB, type="batch", callbacks=[1]), "callbacks"),
        (chain(JOB, job(unique={"args_keys": ["x"]})), "$.steps[1].options.unique.args_keys"),
    ],
)
def test_a_plan_with_a_field_that_is_wrong_is_refused_by_its_name(api: Api, plan: dict[str, Any], field: str) -> None:
    assert refused(api, plan)["details"]["field"] == field


def test_a_plan_is_not_nested_without_end(api: Api) -> None:
    assert "deeper" in refused(api, nested(6))["message"]


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
def test_a_step_of_a_graph_is_a_job_and_no_workflow(holder: Holder, kind: str, inner: dict[str, Any]) -> None:
    error = refused(holder("send:default"), graph(step("first"), step("then", "first", type=kind, **inner)))
    assert (error["code"], "$.steps[1].type" in error["message"]) == ("invalid_workflow", True)


@pytest.mark.parametrize(
    ("part", "path"),
    [
        (group(JOB, callbacks=3), "callbacks"),
        (group(JOB, type="batch", callbacks={"on_complete": 3}), "callbacks"),
        ({"type": "group", "jobs": "x"}, "jobs"),
        ({"type": "group", "jobs": None}, "jobs"),
        (chain(1), "steps"),
        ({"type": "chain", "steps": {}}, "steps"),
        *((chain(JOB, type=kind), "type") for kind in (3, ["chain"], None)),
        ({"steps": [JOB]}, "type"),
    ],
)
def test_a_workflow_in_a_workflow_with_a_wrong_field_is_refused_by_its_path(
    holder: Holder, part: dict[str, Any], path: str
) -> None:
    api = holder("send")
    for plan, where in (
        (chain(JOB, part), "$.steps[1]"),
        (group(JOB, type="batch", callbacks={"on_complete": part}), "$.callbacks.on_complete"),
    ):
        error = refused(api, plan)
        assert (error["code"], f"{where}.{path}" in error["message"]) == ("invalid_workflow", True), error


@pytest.mark.parametrize(
    "plan",
    [
        group(*[JOB] * 1_001),
        group(*[group(*[JOB] * 500)] * 3),
        {"steps": [step(str(number)) for number in range(1_001)]},
    ],
    ids=["flat", "nested", "graph"],
)
def test_a_plan_of_too_many_jobs_is_refused_before_one_is_checked(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]
) -> None:
    monkeypatch.setattr(workflows, "JobIn", None)
    assert "$ has more than 1000 jobs." in refused(holder("send"), plan)["message"]
