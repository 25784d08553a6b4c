"""A client of the HTTP API, for the tests."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from django.db import connection, transaction
from django.test import Client

MEDIA = "application/openjobspec+json"
MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
"""A time as the spec writes it (ojs-http-binding, section 6.3)."""


class Api:
    """A client that sends and reads JSON."""

    def __init__(self, **headers: str) -> None:
        # Of a server with threads: with one only, no request waits.
        self.client, self.headers = Client(**{"wsgi.multithread": True}), headers

    def ask(self, method: str, path: str, body: object = None, *, status: int = 200, **headers: str) -> dict[str, Any]:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        asked = {**self.headers, **headers}
        kind = asked.pop("content_type", MEDIA)
        answer = self.client.generic(method, f"/ojs/v1{path}", raw, content_type=kind, headers=asked)
        assert answer.status_code == status, answer.content
        self.last = answer
        return json.loads(answer.content) if answer.content else {}

    def get(self, path: str, **more: Any) -> dict[str, Any]:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: object = None, **more: Any) -> dict[str, Any]:
        return self.ask("POST", path, body, **more)

    def push(self, **job: Any) -> dict[str, Any]:
        pushed = self.post("/jobs", {"type": "mail.send", "args": [], **job}, status=201)["job"]
        assert isinstance(pushed, dict)
        return pushed

    def fetch(self, *queues: str, **more: Any) -> list[dict[str, Any]]:
        fetched = self.post("/workers/fetch", {"queues": queues or ["default"], **more})["jobs"]
        assert isinstance(fetched, list)
        return fetched

    def taken(self, **job: Any) -> dict[str, Any]:
        """Push a job of the queue `default`, and fetch it."""
        self.push(**job)
        (fetched,) = self.fetch()
        return fetched

    def ack(self, job: Mapping[str, Any], *, status: int = 200, **more: Any) -> dict[str, Any]:
        return self.post("/workers/ack", {"job_id": job["id"], **more}, status=status)

    def nack(self, job: Mapping[str, Any], **error: Any) -> dict[str, Any]:
        return self.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", **error}})


Holder = Callable[..., Api]
"""Makes a token with these scopes, and returns a client that shows it; name: the token's."""


def field_of(answer: dict[str, Any]) -> str:
    """Return the field of a request that an error names."""
    return str(answer["error"]["details"]["field"])


def error_of(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["error"]["code"], answer["error"]["message"]


@contextmanager
def another_transaction(deed: Callable[[], object]) -> Iterator[None]:
    """Do something in a transaction of another connection, which commits at the end of the block."""
    is_done, may_commit = Event(), Event()

    def do() -> None:
        try:
            with transaction.atomic():
                deed()
                is_done.set()
                may_commit.wait(30)
        finally:
            is_done.set()
            connection.close()

    doer = Thread(target=do)
    doer.start()
    is_done.wait(30)
    try:
        yield
    finally:
        may_commit.set()
        doer.join(30)
