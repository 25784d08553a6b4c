"""Where requests may go whose address a caller chose."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from dispatcher import handlers, outbound
from dispatcher.errors import CallInvalid, TargetRefused
from tests.serving import Reply, Request, serving

PRIVATE = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "[::1]", "[::7f00:1]", "[64:ff9b::a00:1]", "localhost"]


HOSTS: list[str] = []
"""Who was asked."""


def redirect(asked: Request) -> Reply:
    """Redirect to the address in the path."""
    HOSTS.append(asked.headers["Host"].partition(":")[0])
    return 302 if "/to/" in asked.path else 200, {"Location": asked.path.partition("/to/")[2]}, b""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Give the port of a server of this machine; every name leads here."""
    HOSTS.clear()
    with serving(redirect) as address:
        port = int(address.rpartition(":")[2])
        here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
        yield port


def get(url: str) -> Any:
    return handlers.run({"method": "get", "params": {"url": url}})


@pytest.mark.parametrize("host", [*PRIVATE, "billing.internal", "2130706433"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_call_reaches_no_private_address_by_default(port: int, scheme: str, host: str) -> None:
    with pytest.raises(TargetRefused, match="no public address"):
        get(f"{scheme}://{host}:{port}/")
    assert not HOSTS


@pytest.mark.parametrize("host", ["billing.internal", "10.1.2.3", "localhost"])
@pytest.mark.parametrize("allowed", ["*", "127.0.0.0/8", None])
def test_a_call_reaches_what_the_setting_allows(settings: Settings, port: int, host: str, allowed: str | None) -> None:
    settings.DISPATCHER = {"http_allowed_hosts": [allowed or host]}
    if allowed == "127.0.0.0/8" and host == "10.1.2.3":
        # The URL itself names what is not allowed.
        with pytest.raises(TargetRefused):
            get(f"http://{host}:{port}/")
    else:
        assert get(f"http://{host}:{port}/")["status"] == 200


def test_a_redirect_is_checked_like_the_first_request(settings: Settings, port: int) -> None:
    settings.DISPATCHER = {"http_allowed_hosts": ["billing.internal", "*.shop.internal"]}
    start = f"http://billing.internal:{port}/to/"
    assert get(f"{start}http://www.shop.internal:{port}/")["status"] == 200
    for host in ("127.0.0.1", "169.254.169.254", "localhost", "db.internal"):
        with pytest.raises(TargetRefused):
            get(f"{start}http://{host}:{port}/")
    assert set(HOSTS) == {"billing.internal", "www.shop.internal"}


@pytest.mark.parametrize("name", ["proxies", "hooks", "verify", "cert", "stream"])
def test_what_would_lead_a_request_elsewhere_is_refused_by_name(name: str) -> None:
    with pytest.raises(CallInvalid, match=rf"^call_data\.params\.{name}: is not known"):
        handlers.run({"method": "get", "params": {"url": "https://example.org", name: "x"}})


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("192.0.0.8", False),
        ("192.88.99.1", False),
        ("::ffff:192.0.0.8", False),
        ("3fff::1", False),
        ("3fff:fff:ffff::1", False),
        ("3fff:1000::1", True),
        ("2002:0a00:0001::1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::a00:1", False),
        ("::7f00:1", False),
        ("::", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_an_address_is_public_or_not(address: str, is_one: bool) -> None:  # noqa: FBT001 -- a case
    assert outbound.is_public(address) is is_one
