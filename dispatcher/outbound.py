"""HTTP requests to addresses that a caller chose: public ones, and those that the setting `http_allowed_hosts` names.

The address is checked on the open connection, before anything is sent: a name may lead elsewhere at any time. So there
are no proxies, which look up names by themselves, and no credentials of the process, such as a `.netrc`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import SHUT_RDWR, socket
from threading import Timer
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dispatcher.conf import conf
from dispatcher.errors import AnswerTooLarge, TargetRefused

REMEDY: Final = "or allow its host with DISPATCHER['http_allowed_hosts'], for networks of your own."
_SUCCESS: Final = 2
_PART: Final = 1_024
"""How many bytes are decompressed at once: they may become a thousand times as many."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_RESERVED: Final = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Networks of the IANA's special-purpose registries that `is_global` of some versions of Python lets by."""


def request(method: str, url: str, *, timeout: float = 30, **options: Any) -> requests.Response:
    """Make a request with `requests`, in so many seconds in all, also for those that follow a redirect.

    Only the body of a 2xx is read; with `stream`, none is. Raises TargetRefused for a private address, AnswerTooLarge
    for a body that is larger than `max_payload_bytes`, requests.Timeout.
    """
    with _within(timeout), requests.Session() as session:
        session.trust_env = False
        session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Checked())
        return session.request(method, url, timeout=timeout, **options)


def problem_of(url: str) -> str | None:
    """Return why no request may go to a URL, as far as that can be seen without asking for its address."""
    host = host_of(url)
    if not host:
        return f"{url!r} is no URL; give one such as https://api.example.com/hooks."
    address = "127.0.0.1" if f".{host}".endswith(".localhost") else host
    if is_allowed(host, address) or not _is_private(address):
        return None
    return f"{host!r} is no public address. Give the receiver one, {REMEDY}"


def host_of(url: str) -> str:
    """Return the host of a URL in lower case; an empty text if there is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return ""
    return (host or "").rstrip(".").lower()


def is_allowed(host: str, address: str) -> bool:
    """Return whether the setting allows a host by its name or pattern, or its address by a network."""
    allowed = conf().http_allowed_hosts
    if any(fnmatchcase(host, pattern.lower()) for pattern in allowed):
        return True
    with suppress(ValueError):
        ip = ip_address(address)
        return any(ip in ip_network(each, strict=False) for each in allowed if "/" in each)
    return False


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet, and of a single host."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        translated = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
        inner = ip.ipv4_mapped or ip.sixtofour or translated
        if inner is None:
            # Versions of Python differ about the rest, such as ::7f00:1, which some systems take for 127.0.0.1.
            return ip in _GLOBAL_UNICAST and _is_global(ip)
        ip = inner
    return _is_global(ip)


def _is_global(ip: IPv4Address | IPv6Address) -> bool:
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _RESERVED)


def _is_private(address: str) -> bool:
    """Return whether a text is an address, and not a public one; the address of a name is checked when it is known."""
    with suppress(ValueError):
        return not is_public(address)
    return False


class _Deadline:
    """When a request must be done, and its connections: they are shut down then, whatever is waited for."""

    def __init__(self, seconds: float) -> None:
        self.until = monotonic() + seconds
        self.sockets: list[socket] = []

    @property
    def is_over(self) -> bool:
        return monotonic() >= self.until

    def watch(self, connected: socket) -> None:
        # A copy: TLS takes the socket itself over.
        self.sockets.append(connected.dup())
        if self.is_over:
            self.cut()

    def cut(self) -> None:
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(SHUT_RDWR)


_deadline: ContextVar[_Deadline] = ContextVar("dispatcher_outbound_deadline")


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Let what is requested take so many seconds in all. Raises requests.Timeout."""
    deadline = _Deadline(seconds)
    outer, timer = _deadline.set(deadline), Timer(seconds, deadline.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except requests.RequestException as fault:
        if not deadline.is_over:
            raise
        raise _timed_out(seconds) from fault
    finally:
        timer.cancel()
        _deadline.reset(outer)
        for each in deadline.sockets:
            each.close()
    if deadline.is_over:
        # A body of unknown length may end where the connection was shut down.
        raise _timed_out(seconds)


def _timed_out(seconds: float) -> requests.Timeout:
    return requests.Timeout(f"there was no whole answer within {seconds:g} s")


def _checked(connected: socket, host: str) -> socket:
    address = connected.getpeername()[0]
    if is_public(address) or is_allowed(host.strip("[]").rstrip(".").lower(), address):
        _deadline.get().watch(connected)
        return connected
    connected.close()
    message = f"{host!r} leads to {address}, which is no public address. Give the receiver one, {REMEDY}"
    raise TargetRefused(message)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket:
        return _checked(super()._new_conn(), self.host)


class _TlsConnection(HTTPSConnection):
    def _new_conn(self) -> socket:
        return _checked(super()._new_conn(), self.host)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Checked(HTTPAdapter):
    """Sends to public and allowed addresses only."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Have every connection checked."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request if its URL may be reached, and read no more of the answer than may be kept."""
        if (problem := problem_of(request.url or "")) is not None:
            raise TargetRefused(problem)
        answer = super().send(request, *args, **{**kwargs, "stream": True})
        answer._content = b"" if kwargs.get("stream") or not _is_success(answer) else _read(answer)  # noqa: SLF001 -- as `requests` does
        answer.close()
        return answer


def _is_success(answer: requests.Response) -> bool:
    return answer.status_code // 100 == _SUCCESS


def _read(answer: requests.Response) -> bytes:
    """Return the body of an answer. Raises AnswerTooLarge."""
    read, most = bytearray(), conf().max_payload_bytes
    for part in answer.iter_content(_PART):
        read += part
        if len(read) > most:
            answer.close()
            message = f"the answer of {answer.url} is larger than max_payload_bytes, {most} bytes"
            raise AnswerTooLarge(message)
    return bytes(read)
