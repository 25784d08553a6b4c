"""What runs a call's `call_data`: registered handlers, and HTTP."""

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest
import requests
from pytest_django import Settings

from dispatcher import handlers
from dispatcher.errors import AnswerTooLarge, CallInvalid, UnknownMethod
from dispatcher.lifecycle.run import Stopped, run
from tests.serving import Reply, Request, serving


def echo(asked: Request) -> Reply:
    """Answer with what was asked; the path is the status."""
    said = {"method": asked.method, "path": asked.path, "body": asked.body.decode()}
    text = json.dumps({**said, "auth": asked.headers.get("Authorization")}).encode()
    return int(asked.path.split("/")[1].split("?")[0]), {"Retry-After": "120"}, text


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a server that answers with what it was asked."""
    with serving(echo) as address:
        yield address


@pytest.fixture(autouse=True)
def _handlers_of_this_test() -> Iterator[None]:
    with patch.dict(handlers.registered):
        yield


@pytest.fixture(autouse=True)
def _allows_this_machine(settings: Settings) -> None:
    settings.DISPATCHER = {"http_allowed_hosts": ["127.0.0.1"]}


def get(url: str, **params: Any) -> Any:
    return handlers.run({"method": "get", "params": {"url": url, **params}})


def test_a_registered_handler_is_called_with_the_params() -> None:
    @handlers.register("greet")
    def greet(*, name: str, often: int = 1) -> str:
        return f"hello {name}" * often

    handlers.register("ping")(lambda: "pong")
    assert handlers.run({"method": "greet", "params": {"name": "ann", "often": 2}}) == "hello annhello ann"
    assert greet(name="bob") == "hello bob"
    assert handlers.run({"method": "ping"}) == "pong"


def test_a_registered_handler_stands_in_for_an_http_method() -> None:
    handlers.register("get")(lambda url: f"got {url}")
    assert get("x") == "got x"


@pytest.mark.parametrize("method", ["sms", "connect", "trace"])
def test_an_unknown_method_names_those_there_are(method: str) -> None:
    handlers.register("greet")(lambda: None)
    with pytest.raises(
        UnknownMethod, match=rf"no handler for '{method}'; known are .*get, greet, .*register"
    ) as caught:
        handlers.run({"method": method, "params": {}})
    assert caught.value.method == method


@pytest.mark.parametrize(
    "wrong", [{}, {"method": 5}, {"method": None, "params": {}}, {"method": "get", "params": []}], ids=str
)
def test_call_data_of_another_shape_is_refused(wrong: Any) -> None:
    with pytest.raises(CallInvalid, match=r"^call_data\.(method|params): .* must be a "):
        handlers.run(wrong)


@pytest.mark.parametrize("method", ["get", "POST", "put", "Patch", "delete", "options"])
def test_an_http_method_makes_the_call(method: str, url: str) -> None:
    answer = handlers.run({"method": method, "params": {"url": f"{url}/200", "json": {"a": "ä"}, "params": {"q": 1}}})
    assert answer["status"] == 200
    said = json.loads(answer["text"])
    assert (said["method"], said["path"], json.loads(said["body"])) == (method.upper(), "/200?q=1", {"a": "ä"})


def test_an_answer_that_is_an_error_raises_and_one_that_says_stop_waits_as_long_as_the_setting_allows(
    url: str, settings: Settings
) -> None:
    for status in (400, 404, 500):
        with pytest.raises(requests.HTTPError, match=str(status)):
            get(f"{url}/{status}")
    for status, allowed, wait in ((429, 3_600, 120), (503, 3_600, 120), (429, 60, 60)):
        settings.DISPATCHER = {**settings.DISPATCHER, "http_max_block": allowed}
        outcome = run(lambda status=status: get(f"{url}/{status}"))
        assert isinstance(outcome, Stopped)
        assert outcome.wait.total_seconds() == wait


@pytest.mark.parametrize("timeout", [None, 0, -1, True, "5", float("nan"), float("inf"), 3_601, [1, 2]], ids=str)
def test_a_timeout_of_no_use_is_refused_by_name(url: str, timeout: Any) -> None:
    with pytest.raises(CallInvalid, match=r"^call_data\.params\.timeout: .* must be a number above 0, up to 3600"):
        get(f"{url}/200", timeout=timeout)


@pytest.mark.parametrize("status", [200, 302, 500])
@pytest.mark.parametrize("part", [b"HTTP", b"HTTP/1.0 %d OK\r\n\r\n"], ids=["head", "body"])
def test_an_answer_that_never_ends_ends_with_the_timeout(part: bytes, status: int) -> None:
    with endless(part % status if b"%" in part else part) as url:
        if part == b"HTTP" or status == 200:
            with pytest.raises(requests.Timeout, match=r"no whole answer within 0\.5 s"):
                get(url, timeout=0.5)
        elif status == 302:
            assert get(url, timeout=10)["text"] == ""
        else:
            with pytest.raises(requests.HTTPError):
                get(url, timeout=10)


@pytest.mark.parametrize("is_packed", [False, True])
def test_an_answer_that_is_too_large_is_not_kept(settings: Settings, is_packed: bool) -> None:  # noqa: FBT001 -- a case
    settings.DISPATCHER = {**settings.DISPATCHER, "max_payload_bytes": 100_000}
    body = bytes(100_001)
    head = b"Content-Encoding: gzip\r\n" if is_packed else b""
    said = b"HTTP/1.0 200 OK\r\n" + head + b"\r\n" + (gzip.compress(body) if is_packed else body)
    with endless(said, ends=True) as url, pytest.raises(AnswerTooLarge, match="max_payload_bytes, 100000 bytes"):
        get(url)


def test_no_credentials_or_proxies_of_the_process_are_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert "Basic" not in str(get(f"{url}/200"))


@contextmanager
def endless(said: bytes, *, ends: bool = False) -> Iterator[str]:
    """Give the URL of a server that says this, and then, unless it ends, a byte now and again."""

    def answer(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.recv(65_536)
            client.sendall(said)
            while not ends and not is_over.wait(0.1):
                client.sendall(b"x")

    is_over = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        is_over.set()
        thread.join()
