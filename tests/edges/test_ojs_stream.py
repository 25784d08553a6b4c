"""The live stream of events over HTTP."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections
from pytest_django import Settings

from dispatcher.web.ojs.views import events
from tests.edges.ojs import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def elsewhere(open_http: None, settings: Settings) -> Iterator[str]:
    """Keep the dispatcher's tables in a database that is not Django's default one."""
    del open_http
    connections["elsewhere"] = connection.copy("elsewhere")
    settings.DISPATCHER |= {"database": "elsewhere"}
    yield "elsewhere"
    connections["elsewhere"].close()
    del connections["elsewhere"]


def test_a_stream_that_waits_holds_no_connection_to_the_dispatcher_s_database(
    api: Api, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = api.push()
    held = []

    def rest(_: float) -> None:
        held.append(connections[elsewhere].connection is not None)
        api.fetch()

    monkeypatch.setattr(events, "sleep", rest)
    answer = api.client.get(f"/ojs/v1/jobs/{job['id']}/events")
    stream = iter(answer.streaming_content)
    assert [next(stream).partition(b"\n")[0] for _ in range(3)][1:] == [b"event: job.enqueued", b"event: job.started"]
    assert held == [False]
    answer.close()
