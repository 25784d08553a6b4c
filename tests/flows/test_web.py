"""The web server as docker-compose.yml has it: slow clients, a stop, a proxy in front; with real sockets."""

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from dispatcher.models import Process, Queue
from project.processes import free_port, listening
from project.run_dirs import ROOT
from tests.flows.processes import Processes
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.slow, pytest.mark.ojs]

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
HEADERS = {"Host": "localhost", "X-Forwarded-Proto": "https"}
"""The server believes that it is behind a proxy with TLS, and would redirect to HTTPS without the second."""
LINES = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
PATHS = ("/healthz", "/ojs/v1/health", "/admin/login/")
HEAD = f"GET /healthz HTTP/1.1\r\n{LINES}X-Half: ".encode()
BODY = f"POST /admin/login/ HTTP/1.1\r\n{LINES}Content-Length: 100\r\n\r\nusername=".encode()
MANY = f"GET /static/admin/js/vendor/xregexp/xregexp.js HTTP/1.1\r\n{LINES}\r\n".encode() * 80
"""Read at once; the answers are 25 MB."""


@pytest.fixture(scope="module")
def port(processes: Processes) -> Iterator[int]:
    """Have the service `web` up, which has the fewest threads, with all addresses."""
    number = free_port()
    _, *arguments = SERVICES["web"]["command"]
    command = [sys.executable, *(each.replace("0.0.0.0:8000", f"127.0.0.1:{number}") for each in arguments)]
    env = {"DJANGO_SETTINGS_MODULE": "project.settings", "ROOT_URLCONF": "project.urls", "BEHIND_TLS_PROXY": "1"}
    processes.stack.start("web", command, ready=listening(number), env=env)
    processes.stack.wait_ready()
    # The first request imports the addresses and all behind them.
    assert [ask(number, path) for path in PATHS] == [200] * len(PATHS)
    yield number
    processes.stack.kill("web")


def ask(port: int, path: str) -> int:
    """Return the status of the answer to a request for a path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=HEADERS)
    return connection.getresponse().status


def fetch(port: int, token: str) -> dict[str, Any]:
    """Wait three seconds for a job, and return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/openjobspec+json"}
    body = json.dumps({"queues": ["mail"], "worker_id": "w", "wait_ms": 3_000})
    connection.request("POST", "/ojs/v1/workers/fetch", body, HEADERS | headers)
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("sent", "connections"),
    [
        pytest.param(HEAD, 200, id="heads half sent"),
        pytest.param(BODY, 200, id="bodies half sent"),
        pytest.param(MANY, 20, id="no answer read"),
    ],
)
def test_slow_clients_hold_up_no_other(port: int, sent: bytes, connections: int) -> None:
    with ExitStack() as open_sockets:
        for _ in range(connections):
            client = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            client.sendall(sent)
        # Requests take turns: when these are answered, each of the others would have had 60 answers, or 19 MB.
        for path in PATHS * 20:
            began = time.monotonic()
            assert ask(port, path) == 200
            assert time.monotonic() - began < 1.0, path


def test_a_stop_waits_for_a_fetch_and_for_no_silent_connection(port: int, processes: Processes) -> None:
    from dispatcher.ojs.auth import make_token  # noqa: PLC0415 -- the app may be left out

    Queue.objects.create(name="mail", delivery="http")
    token = make_token("workers", ["fetch:mail"])
    server = processes.stack.children["web"]
    with ThreadPoolExecutor() as clients, socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(HEAD)
        fetching = clients.submit(fetch, port, token)
        eventually(Process.objects.exists)
        server.ask_to_stop()
        assert fetching.result() == {"jobs": []}
        server.end_by(time.monotonic() + 5)
    assert server.popen.returncode == 0
