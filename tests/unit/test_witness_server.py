"""The witness over real sockets: it times, holds, refuses and reports."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from project.witness.arrivals import Arrivals
from project.witness.ledger import SECOND, Limits, Window
from project.witness.server import Witness
from tests.races.lockstep import eventually

LIMITS = {
    "single": Limits(concurrency=1),
    "window": Limits(rate=Window(limit=2, period=60 * SECOND)),
    "even": Limits(throttle=Window(limit=1, period=60 * SECOND)),
    "free": Limits(),
}


@pytest.fixture
def witness() -> Iterator[str]:
    """Run a witness and yield its address."""
    with Witness(LIMITS) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def post(url: str, key: str, *, call: str = "call", seconds: float = 0.0, failures: int = 0) -> requests.Response:
    """Send one request to the witness."""
    asked = {"keys": [key], "call": call, "seconds": seconds, "failures": failures}
    return requests.post(f"{url}/anything", json=asked, timeout=10)


def record(url: str) -> Any:
    return requests.get(f"{url}/record", timeout=10).json()


def test_a_request_that_breaks_a_limit_gets_429_with_the_limit_and_a_time_to_wait(witness: str) -> None:
    answers = [post(witness, "window") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].headers["Retry-After"] == "60"
    assert answers[-1].json() == {"broken": {"window": ["rate"]}}
    assert [post(witness, "even").status_code for _ in range(2)] == [200, 429]


def test_a_request_whose_caller_hangs_up_is_over_at_once_and_no_success(witness: str) -> None:
    asked = json.dumps({"keys": ["single"], "call": "gone", "seconds": 60, "failures": 0})
    caller = HTTPConnection(witness.removeprefix("http://"))
    caller.request("POST", "/anything", asked, {"Content-Type": "application/json"})
    eventually(lambda: "gone" in record(witness)["calls"])
    caller.close()
    eventually(lambda: post(witness, "single", call="next").status_code == 200)
    calls = record(witness)["calls"]
    assert (calls["gone"]["requests"], calls["gone"]["successes"]) == (1, 0)


def test_a_caller_that_breaks_its_connection_is_no_error_of_the_witness(
    witness: str, capfd: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(witness)
    with socket.create_connection((address.hostname, address.port)) as caller:
        caller.sendall(b"GET /limits HTTP/1.1\r\n\r\n")
        # The kernel resets a connection that is closed with an answer unread.
        caller.recv(1)
    eventually(lambda: not any("process_request_thread" in each.name for each in threading.enumerate()))
    assert "Traceback" not in capfd.readouterr().err


def test_only_one_at_a_time_is_welcome_at_a_key_of_concurrency_one(witness: str) -> None:
    with ThreadPoolExecutor(2) as both:
        codes = list(both.map(lambda call: post(witness, "single", call=call, seconds=0.5).status_code, "ab"))
    assert sorted(codes) == [200, 429]
    assert post(witness, "single").status_code == 200
    assert record(witness)["keys"]["single"]["most_at_once"] == 2


def test_a_call_fails_as_often_as_it_asks_to_and_then_succeeds(witness: str) -> None:
    assert [post(witness, "free", failures=2).status_code for _ in range(3)] == [500, 500, 200]
    calls = record(witness)["calls"]
    assert (calls["call"]["requests"], calls["call"]["successes"]) == (3, 1)


def test_the_limits_are_published_in_seconds_and_a_key_without_gets_400_that_names_it(witness: str) -> None:
    published = requests.get(f"{witness}/limits", timeout=10).json()
    assert published["window"] == {"concurrency": None, "rate": {"limit": 2, "period_s": 60.0}, "throttle": None}
    assert published["single"]["concurrency"] == 1
    answer = post(witness, "typo")
    assert answer.status_code == 400
    assert "typo" in answer.json()["error"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when bytes arrived")
def test_bytes_count_as_arrived_when_the_kernel_had_them_however_late_they_are_read() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as caller,
        listener.accept()[0] as connection,
    ):
        arrivals = Arrivals(connection)
        # The kernel begins to note arrivals a moment after it was asked to.
        caller.sendall(b"warm")
        assert arrivals.read(4) == b"warm"
        time.sleep(0.2)
        before = time.monotonic_ns()
        caller.sendall(b"POST")
        sent_at = time.monotonic_ns()
        time.sleep(0.2)
        assert arrivals.read(4) == b"POST"
        assert before - SECOND // 100 < arrivals.latest_at < sent_at + SECOND // 10
