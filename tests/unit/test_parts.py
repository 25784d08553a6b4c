"""The parts of a message for direct delivery: as Celery makes them, and nothing of another call."""

from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from dispatcher.messages.message import Admitted, parts


@pytest.fixture
def app() -> Celery:
    app = Celery("parts", set_as_current=False)

    @app.task(name="add", time_limit=9)
    def add(*args: Any) -> None:
        del args

    return app


def admitted(number: int, **given: Any) -> Admitted:
    whole: dict[str, Any] = {"args": [], "kwargs": {}, "call_data": None, "headers": None, "options": None}
    return Admitted(
        id=UUID(int=number), ticket=UUID(int=100 + number), task="add", queue="celery", attempt=0, **{**whole, **given}
    )


def celerys(app: Celery, call: Admitted) -> tuple[Any, Any, Any]:
    """Return what Celery makes of the call, with the headers that only the dispatcher knows left out."""
    message = app.amqp.create_task_message(
        str(call.id), "add", call.args, call.kwargs, retries=call.attempt, time_limit=9, ignore_result=False,
        root_id=str(call.id), reply_to=app.thread_oid,
    )  # fmt: skip
    return message.headers, message.properties, message.body


@pytest.mark.parametrize("options", [None, {"shadow": "plus", "priority": 5}], ids=["template", "options"])
def test_each_call_has_its_own_parts_and_nothing_of_the_one_before(app: Celery, options: Any) -> None:
    first = admitted(1, args=[1, "a"], headers={"tenant": "acme"}, options=options)
    parts(app, first)
    second = admitted(2, kwargs={"x": [1]}, options=options, headers={"trace": "t"})
    headers, properties, body = parts(app, second)
    expected, expected_properties, expected_body = celerys(app, second)
    own = {"dispatcher_ticket": str(second.ticket), "dispatcher_call": str(second.id), "trace": "t"}
    assert headers == {**expected, **own, **({"shadow": "plus"} if options else {})}
    assert properties == {**expected_properties, "priority": (options or {}).get("priority", 0)}
    assert tuple(body) == tuple(expected_body)
