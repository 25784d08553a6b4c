"""Workflows over HTTP: what follows what, when, and once."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs.models import Part, Workflow
from dispatcher.ojs.workflow import advance
from tests.builders import erase
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


api = Api()
ask = api.ask


def job(name: str, **options: Any) -> dict[str, Any]:
    return {"type": name, "args": [], "options": {"retry": {"max_attempts": 1}, **options}}


def make(**plan: Any) -> str:
    made: str = api.post("/workflows", plan, status=201)["workflow"]["id"]
    return made


def work(*failing: str) -> list[dict[str, Any]]:
    """Do what is there to be done, and what follows from it; return the jobs in the order of their fetches."""
    done = []
    while fetched := api.fetch(count=1):
        done += fetched
        if fetched[0]["type"] in failing:
            api.post("/workers/nack", {"job_id": fetched[0]["id"], "error": {"message": "no"}})
        else:
            api.post("/workers/ack", {"job_id": fetched[0]["id"], "result": {"of": fetched[0]["type"]}})
    return done


def stands(number: str) -> dict[str, Any]:
    reply: dict[str, Any] = api.get(f"/workflows/{number}")["workflow"]
    return reply


def test_a_chain_goes_step_by_step_and_hands_the_results_on() -> None:
    number = make(type="chain", name="onboard", steps=[job("a"), job("b"), job("c")])
    assert [step["state"] for step in stands(number)["steps"]] == ["pending", "waiting", "waiting"]
    done = work()
    assert [each["type"] for each in done] == ["a", "b", "c"]
    assert (done[0]["parent_results"], done[0]["workflow_id"]) == ({}, number)
    assert done[2]["parent_results"] == {"0": {"of": "a"}, "1": {"of": "b"}}
    reply = stands(number)
    assert (reply["state"], reply["metadata"]["completed_count"]) == ("completed", 3)


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ({"type": "chain", "steps": [job("a"), job("b")]}, "steps"),
        ({"type": "group", "jobs": [job("a"), job("b")]}, "jobs"),
        ({"type": "batch", "jobs": [job("a"), job("b")], "callbacks": {"on_complete": job("end")}}, "jobs"),
        ({"steps": [{"id": "one", **job("a")}, {"id": "two", **job("b")}]}, "steps"),
    ],
    ids=["chain", "group", "batch", "graph"],
)
def test_a_workflow_counts_its_parts(plan: dict[str, Any], parts: str) -> None:
    reply = api.post("/workflows", plan, status=201)["workflow"]
    assert (reply[f"{parts}_total"], reply[f"{parts}_completed"]) == (2, 0)
    work("b")
    reply = stands(reply["id"])
    assert (reply[f"{parts}_total"], reply[f"{parts}_completed"]) == (2, 1)


def test_a_chain_ends_with_the_step_that_fails() -> None:
    number = make(type="chain", steps=[job("a"), job("b"), job("c")])
    assert [each["type"] for each in work("b")] == ["a", "b"]
    reply = stands(number)
    assert (reply["state"], reply["failed_step_index"]) == ("failed", 1)
    assert [step["state"] for step in reply["steps"]] == ["completed", "failed", "cancelled"]


def test_a_group_goes_side_by_side_and_fails_when_all_have_ended() -> None:
    number = make(type="group", jobs=[job("a"), job("b"), job("c")])
    assert CallQueue.objects.filter(state="available").count() == 3
    assert [each["type"] for each in work("a")] == ["a", "b", "c"]
    reply = stands(number)
    assert (reply["state"], reply["metadata"]["failed_count"], len(reply["failed_job_ids"])) == ("failed", 1, 1)


@pytest.mark.parametrize(("failing", "callback"), [((), "yes"), (("b",), "no")])
def test_a_batch_calls_back_once_when_all_have_ended(failing: tuple[str, ...], callback: str) -> None:
    callbacks = {"on_complete": job("end"), "on_success": job("yes"), "on_failure": job("no")}
    number = make(type="batch", jobs=[job("a"), job("b")], callbacks=callbacks)
    done = work(*failing)
    assert sorted(each["type"] for each in done) == sorted(["a", "b", "end", callback])
    (end,) = (each for each in done if each["type"] == "end")
    assert end["parent_results"]["0"] == {"of": "a"}
    assert stands(number)["state"] == "completed"


def test_a_batch_fails_with_its_callback() -> None:
    number = make(type="batch", jobs=[job("a")], callbacks={"on_complete": job("end")})
    work("end")
    assert stands(number)["state"] == "failed"


def test_a_workflow_in_a_workflow_is_a_part_like_any_other() -> None:
    inner = {"type": "group", "jobs": [job("b"), job("c")]}
    number = make(type="chain", steps=[job("a"), inner, job("d")])
    done = work()
    assert [each["type"] for each in done] == ["a", "b", "c", "d"]
    assert done[3]["parent_results"]["1"] == {"0": {"of": "b"}, "1": {"of": "c"}}
    assert stands(number)["state"] == "completed"


def test_how_a_part_ended_outlasts_its_call() -> None:
    number = make(type="chain", steps=[job("a"), job("b")])
    (first,) = api.fetch()
    api.post("/workers/ack", {"job_id": first["id"], "result": 1})
    CallQueue.objects.filter(id=first["id"]).delete()
    (second,) = work()
    assert second["parent_results"] == {"0": 1}
    assert stands(number)["state"] == "completed"


def test_a_workflow_that_is_cancelled_starts_nothing_more() -> None:
    inner = {"type": "group", "jobs": [job("b"), job("c")]}
    number = make(type="group", jobs=[job("a"), inner])
    api.fetch()
    reply = ask("DELETE", f"/workflows/{number}")["workflow"]
    assert (reply["state"], reply["steps_cancelled"]) == ("cancelled", 2)
    assert work() == []
    assert set(Workflow.objects.values_list("state", flat=True)) == {"cancelled"}
    ask("DELETE", f"/workflows/{number}", status=409)


def lock(name: str) -> None:
    """Have a job there, of which no other with this type may be."""
    api.post("/jobs", job(name, queue="else", unique={"keys": ["type"]}), status=201)


def unique(name: str) -> dict[str, Any]:
    return job(name, unique={"keys": ["type"]})


def bound(queue: str, depth: int) -> None:
    ask("PUT", f"/admin/queues/{queue}/config", {"backpressure": {"max_depth": depth, "strategy": "reject"}})


def test_a_step_that_can_t_be_sent_has_failed_and_says_why() -> None:
    RateLimitKey.objects.declare("spent")
    number = make(type="chain", name="one", steps=[job("a"), job("b", keys=["spent"]), job("c")])
    RateLimitKey.objects.filter(name="spent").delete()
    assert [each["type"] for each in work()] == ["a"]
    reply = stands(number)
    assert (reply["state"], reply["failed_step_index"]) == ("failed", 1)
    assert [each["state"] for each in reply["steps"]] == ["completed", "failed", "cancelled"]
    assert (reply["steps"][1]["error"]["code"], "spent" in reply["errors"][0]["message"]) == ("invalid_request", True)
    assert "job_id" not in reply["steps"][1]
    failed = api.get("/events?types=workflow.failed")["events"][0]["data"]
    assert (failed["failed_step_type"], "spent" in failed["error"]["message"]) == ("b", True)


def test_a_workflow_that_can_t_go_on_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    first = make(type="chain", steps=[job("a"), unique("b")])
    second = make(type="chain", steps=[job("c"), job("d")])
    lock("b")
    plan = [{"type": "group", "jobs": [None]}]
    broken = str(Workflow.objects.create(id=UUID(int=1), kind="chain", plan=plan, look_at=timezone.now()).id)
    CallQueue.objects.filter(queue="default").update(state="completed", finished_at=timezone.now())
    assert advance.advance_all() == 3
    assert f"failed to advance workflow {broken}" in caplog.text
    assert [stands(number)["state"] for number in (first, second, broken)] == ["failed", "running", "running"]
    assert stands(first)["steps"][1]["error"]["code"] == "duplicate"
    assert [each["type"] for each in work()] == ["d"]
    assert advance.advance_all() == 0
    assert Workflow.objects.get(id=broken).look_at > timezone.now()
    assert ask("DELETE", f"/workflows/{broken}")["workflow"]["state"] == "cancelled"


def queries(do: Callable[[], object], count: int | None = None) -> int:
    """Return how many statements it takes to do this, which comes to so many workflows."""
    with CaptureQueriesContext(connection) as asked:
        done = do()
    assert count in {None, done}
    return len(asked)


def complete(*tasks: str) -> None:
    """Have calls end as in a process that then dies: nothing advances their workflows."""
    calls = CallQueue.objects.filter(task__in=tasks) if tasks else CallQueue.objects.filter(finished_at=None)
    calls.update(state="completed", finished_at=timezone.now(), ticket=None, result=1)


def test_only_workflows_with_news_are_looked_at() -> None:
    for name in "abc":
        make(type="chain", steps=[job(name), job("next")])
    assert advance.advance_all() == 0
    complete("b")
    assert advance.advance_all() == 1
    assert CallQueue.objects.filter(task="next").count() == 1
    assert advance.advance_all() == 0
    assert not Part.objects.filter(ended_at__isnull=False, outcome="open").exists()


def test_a_look_at_many_workflows_takes_as_many_queries_as_one_at_a_few() -> None:
    counts = []
    for number in (2, 20):
        for _ in range(number):
            make(type="chain", steps=[job("a"), job("b")])
            make(type="group", jobs=[job("a"), job("b")])
        complete("a", "b")
        counts.append(queries(advance.advance_all, 2 * number))
        complete()
        advance.advance_all()
    assert counts[0] == counts[1]
    assert set(Workflow.objects.values_list("state", flat=True)) == {"completed"}


def test_a_workflow_is_made_with_as_many_queries_for_many_jobs_as_for_a_few() -> None:
    make(type="group", jobs=[job("a")])
    few, many = ([job(f"a{place}") for place in range(number)] for number in (2, 50))
    assert queries(lambda: make(type="group", jobs=few)) == queries(lambda: make(type="group", jobs=many))
    places = [part.place for part in Part.objects.order_by("call") if part.workflow.plan[0]["type"] == "a0"]
    assert places[-50:] == list(range(50))


def test_the_end_of_a_workflow_in_it_is_news_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance, "_BUDGET_S", 0.0)
    number = make(type="chain", steps=[{"type": "group", "jobs": [job("a")]}, job("b")])
    complete("a")
    assert advance.advance_all() == 1
    assert not CallQueue.objects.filter(task="b").exists()
    assert advance.advance_all() == 1
    assert CallQueue.objects.filter(task="b").exists()
    complete()
    advance.advance_all()
    assert stands(number)["state"] == "completed"
    advance.advance_all()
    assert not Workflow.objects.filter(look_at__isnull=False).exists()


def test_a_job_that_is_a_part_of_two_workflows_is_news_for_both() -> None:
    shared = job("a", unique={"keys": ["type"], "on_conflict": "ignore"})
    for _ in range(2):
        make(type="chain", steps=[shared, job("b")])
    assert CallQueue.objects.count() == 1
    complete("a")
    assert advance.advance_all() == 2
    assert CallQueue.objects.filter(task="b").count() == 2


def test_a_job_that_is_deleted_is_news() -> None:
    for _ in range(5):
        make(type="group", jobs=[job("a")])
    erase(*CallQueue.objects.all())
    assert advance.advance_all() == 5
    assert set(Workflow.objects.values_list("state", flat=True)) == {"failed"}


def test_a_job_that_had_ended_before_its_workflow_began_is_news() -> None:
    shared = job("a", unique={"keys": ["type"], "states": ["completed"], "on_conflict": "ignore"})
    api.post("/jobs", shared, status=201)
    complete("a")
    make(type="chain", steps=[shared, job("b")])
    assert advance.advance_all() == 1
    assert CallQueue.objects.filter(task="b").count() == 1


def test_jobs_that_end_after_their_workflow_are_no_news_for_ever() -> None:
    number = make(type="group", jobs=[job("a"), job("b")])
    api.fetch()
    ask("DELETE", f"/workflows/{number}")
    complete("a")
    assert advance.advance_all() == 1
    assert advance.advance_all() == 0
    assert not Part.objects.filter(ended_at__isnull=False, outcome="open").exists()


def test_a_step_waits_for_room_in_its_queue_and_its_workflow_can_be_cancelled_meanwhile() -> None:
    bound("narrow", 1)
    api.post("/jobs", job("x", queue="narrow"), status=201)
    waits, ends = (make(type="chain", steps=[job(name), job(f"{name}.next", queue="narrow")]) for name in "ab")
    assert len(work()) == 2
    advance.advance_all()
    assert [each["state"] for each in stands(waits)["steps"]] == ["completed", "waiting"]
    assert ask("DELETE", f"/workflows/{ends}")["workflow"]["state"] == "cancelled"
    api.fetch("narrow")
    assert stands(waits)["steps"][1]["state"] == "pending"
    assert [part.outcome for part in Part.objects.order_by("id")] == ["completed", "completed", "open"]


def test_a_queue_that_is_full_is_asked_once_for_all_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # What waits for the first queue is not due again before the second one is asked, however long that takes.
    monkeypatch.setattr(advance, "_RETRY_WHEN_FULL", timedelta(hours=1))
    counts = []
    for number in (3, 12):
        bound(f"narrow{number}", 1)
        for _ in range(number):
            make(type="chain", steps=[job("a"), job("b", queue=f"narrow{number}")])
        complete("a")
        counts.append(queries(advance.advance_all, number))
        assert CallQueue.objects.filter(queue=f"narrow{number}").count() == 1
    assert counts[0] == counts[1]
    Workflow.objects.filter(look_at__isnull=False).update(look_at=timezone.now())
    complete("b")
    assert advance.advance_all() == 15
    assert CallQueue.objects.filter(task="b").count() == 4


def test_a_workflow_in_a_workflow_starts_whole_or_has_failed() -> None:
    inner = {"type": "group", "jobs": [job("b"), unique("c")]}
    number = make(type="chain", steps=[job("a"), inner])
    lock("c")
    assert [each["type"] for each in work()] == ["a"]
    assert stands(number)["state"] == "failed"
    assert Workflow.objects.count() == 1


def test_a_callback_that_can_t_be_sent_fails_its_batch_and_the_other_is_called() -> None:
    number = make(type="batch", jobs=[job("a")], callbacks={"on_success": unique("b"), "on_complete": job("c")})
    lock("b")
    assert [each["type"] for each in work()] == ["a", "c"]
    reply = stands(number)
    assert (reply["state"], reply["callbacks"]["on_success"]["error"]["code"]) == ("failed", "duplicate")


def test_a_step_of_a_graph_that_can_t_be_sent_fails_it_when_the_others_have_ended() -> None:
    steps = [step("a"), step("b", "a", unique={"keys": ["type"]}), step("c", "a"), step("d")]
    number = make(name="graph", steps=steps)
    lock("do.b")
    assert [each["type"] for each in work()] == ["do.a", "do.d"]
    reply = stands(number)
    assert [each["state"] for each in reply["steps"]] == ["completed", "failed", "cancelled", "completed"]
    assert (reply["state"], reply["failed_step_index"]) == ("failed", 1)


def test_a_part_whose_job_was_deleted_before_it_was_seen_to_end_has_failed() -> None:
    number = make(type="group", jobs=[job("a"), job("b")])
    erase(*CallQueue.objects.filter(task="b"))
    assert len(work()) == 1
    reply = stands(number)
    assert (reply["state"], reply["jobs"][1]["error"]["code"]) == ("failed", "not_found")


def step(name: str, *before: str, **options: Any) -> dict[str, Any]:
    return {"id": name, "depends_on": [*before], **job(f"do.{name}", **options)}


@pytest.mark.parametrize(("failing", "callback", "state"), [((), "yes", "completed"), (("do.b",), "no", "failed")])
def test_a_graph_calls_back_once_when_its_steps_have_ended(failing: tuple[str, ...], callback: str, state: str) -> None:
    """As the Python SDK writes a batch: its callbacks are steps that name what they are in `callback_type`."""
    calls = {"end": "on_complete", "yes": "on_success", "no": "on_failure"}
    callbacks = [step(name, "a", "b", callback_type=role) for name, role in calls.items()]
    number = make(name="batch", steps=[step("a"), step("b"), *callbacks])
    done = work(*failing)
    assert sorted(each["type"] for each in done) == sorted(["do.a", "do.b", "do.end", f"do.{callback}"])
    (end,) = (each for each in done if each["type"] == "do.end")
    assert end["parent_results"] == {name: {"of": f"do.{name}"} for name in "ab" if f"do.{name}" not in failing}
    assert stands(number)["state"] == state


def test_a_graph_fails_with_its_callback() -> None:
    number = make(
        steps=[step("a"), step("end", "a", callback_type="on_complete"), step("no", "a", callback_type="on_failure")]
    )
    assert [each["type"] for each in work("do.end")] == ["do.a", "do.end"]
    assert (stands(number)["state"], stands(number)["failed_step_index"]) == ("failed", 1)


def test_steps_start_when_those_before_them_are_completed_and_get_their_results() -> None:
    steps = [step("last", "left", "right"), step("left", "first"), step("right", "first", queue="else"), step("first")]
    number = make(name="diamond", steps=steps)
    assert [each["type"] for each in work()] == ["do.first", "do.left"]
    assert [each["state"] for each in stands(number)["steps"]] == ["pending", "completed", "pending", "completed"]
    (right,) = api.fetch("else")
    api.post("/workers/ack", {"job_id": right["id"], "result": 7})
    (last,) = work()
    assert last["parent_results"] == {"left": {"of": "do.left"}, "right": 7}
    reply = stands(number)
    assert (reply["state"], reply["steps"][0]["id"], reply["steps"][0]["depends_on"]) == (
        "completed",
        "last",
        ["left", "right"],
    )


def test_after_a_failed_step_no_more_start_and_what_runs_may_end() -> None:
    number = make(name="fails", steps=[step("a"), step("b"), step("c", "a"), step("d", "b")])
    first, second = api.fetch(count=2)
    api.post("/workers/nack", {"job_id": first["id"], "error": {"code": "handler_error", "message": "no"}})
    assert stands(number)["state"] == "running"
    api.ack(second)
    reply = stands(number)
    assert [each["state"] for each in reply["steps"]] == ["failed", "completed", "cancelled", "cancelled"]
    assert (reply["state"], reply["failed_step_index"]) == ("failed", 0)


def test_the_options_of_a_workflow_are_those_of_each_step_that_has_no_own() -> None:
    make(name="two", options={"queue": "far", "priority": 5}, steps=[step("a"), step("b", priority=1)])
    assert set(CallQueue.objects.values_list("queue", "priority")) == {("far", 5), ("far", 1)}


def test_a_step_may_spend_a_key_that_one_before_it_makes() -> None:
    limit = {"key": "made", "concurrency": 1}
    number = make(type="chain", steps=[job("a", rate_limit=limit), job("b", keys=["made"])])
    assert [each["type"] for each in work()] == ["a", "b"]
    assert stands(number)["state"] == "completed"


def test_workflows_are_kept_as_long_as_their_calls_and_go_whole() -> None:
    inner = {"type": "group", "jobs": [job("b")]}
    make(type="chain", steps=[job("a"), inner])
    running = make(type="chain", steps=[job("c", queue="else")])
    work()
    engine.cleanup(now=timezone.now() + timedelta(days=29))
    assert Workflow.objects.count() == 3
    engine.cleanup(now=timezone.now() + timedelta(days=31))
    assert [str(workflow.id) for workflow in Workflow.objects.all()] == [running]
    assert Part.objects.count() == 1


def test_a_plan_of_many_workflows_is_written_by_as_many_statements_as_one_of_few() -> None:
    def statements(width: int) -> int:
        inner = {"type": "group", "jobs": [job("a"), job("b")]}
        return queries(lambda: make(type="group", jobs=[{"type": "group", "jobs": [inner] * width}] * width))

    statements(1)
    few = statements(1)
    assert statements(4) <= few + 2
    assert Workflow.objects.count() == 2 * 3 + 1 + 4 + 16


@pytest.mark.parametrize("number", [uuid4(), "x"])
def test_what_is_no_workflow_is_not_found(number: object) -> None:
    api.get(f"/workflows/{number}", status=404)
