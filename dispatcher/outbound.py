"""HTTP requests to addresses that a caller chose: public ones, and those that the setting `http_allowed_hosts` names.

The address is checked on the open connection, before anything is sent: a name may lead elsewhere at any time. Behind a
proxy only the URL is checked, since it is the proxy that looks up the name.
"""

from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import socket
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dispatcher.conf import conf
from dispatcher.errors import TargetRefused

REMEDY: Final = "or allow its host with DISPATCHER['http_allowed_hosts'], for networks of your own."
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_RESERVED: Final = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Networks of the IANA's special-purpose registries that `is_global` of some versions of Python lets by."""


def session() -> requests.Session:
    """Return a session whose requests, also those that follow a redirect, raise TargetRefused for a private address."""
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Checked())
    return made


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


def _checked(connected: socket, host: str) -> socket:
    address = connected.getpeername()[0]
    if is_public(address) or is_allowed(host.strip("[]").rstrip(".").lower(), address):
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
        """Send a request if its URL may be reached."""
        if (problem := problem_of(request.url or "")) is not None:
            raise TargetRefused(problem)
        return super().send(request, *args, **kwargs)
