"""Where webhooks may post: over TLS and to public addresses, unless a setting says otherwise (ojs-webhooks, 8.4).

The address is looked at when the connection stands and before anything is sent: a name may lead elsewhere at any time.
Behind a proxy it is the proxy that knows where a name leads.
"""

from collections.abc import Mapping
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import socket
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dispatcher.conf import conf
from dispatcher.errors import WebhookRefused

_TIMEOUT_S: Final = 30
_REDIRECTS: Final = 3
_REPEATED: Final = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
"""The redirects that a post may follow as it is; 303 asks for a GET, which would deliver nothing."""
_REMEDY: Final = "or allow it with DISPATCHER['http_hooks_anywhere'] = True, for development and networks of your own."
_IPV4_IN_IPV6: Final = IPv6Network("64:ff9b::/96")


def problem_of(url: str) -> str | None:
    """Return why a webhook may not post to a URL, as far as that can be seen without asking for its address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        return f"{url!r} is no URL; give one such as https://api.example.com/hooks."
    if conf().http_hooks_anywhere:
        return None
    if parts.scheme != "https":
        return f"{url!r} is not https: what is posted could be read and changed on its way. Use https, {_REMEDY}"
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost") or not _may_be_public(host):
        return f"{host!r} is no public address. Give the receiver one, {_REMEDY}"
    return None


def post(url: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    """Post, again to where a redirect leads, and return the answer: a 2xx, or what is no redirect from 400.

    Raises WebhookRefused where nothing may be posted to, HTTPError at a redirect that leads nowhere.
    """
    with requests.Session() as session:
        if not conf().http_hooks_anywhere:
            session.mount("https://", _Public())
        for _ in range(1 + _REDIRECTS):
            if (problem := problem_of(url)) is not None:
                raise WebhookRefused(problem)
            answer = session.post(url, data=body, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False)
            if not HTTPStatus.MULTIPLE_CHOICES <= answer.status_code < HTTPStatus.BAD_REQUEST:
                return answer
            leads_to = answer.headers.get("Location", "")
            if answer.status_code not in _REPEATED or not leads_to:
                break
            url = urljoin(url, leads_to)
    message = f"{answer.status_code} {answer.reason}: it redirects to {leads_to or 'nowhere'}, so nothing is delivered"
    raise requests.HTTPError(message, response=answer)


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet, and of a single host."""
    ip = ip_address(address.partition("%")[0])
    inner: IPv4Address | IPv6Address | None = None
    if isinstance(ip, IPv6Address):
        translated = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _IPV4_IN_IPV6 else None
        inner = ip.ipv4_mapped or ip.sixtofour or translated
    ip = inner or ip
    return ip.is_global and not ip.is_multicast


def _may_be_public(host: str) -> bool:
    try:
        return is_public(host)
    except ValueError:
        return True


def _checked(connected: socket) -> socket:
    address = connected.getpeername()[0]
    if is_public(address):
        return connected
    connected.close()
    message = f"its name leads to {address}, which is no public address. Give the receiver one, {_REMEDY}"
    raise WebhookRefused(message)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket:
        return _checked(super()._new_conn())


class _TlsConnection(HTTPSConnection):
    def _new_conn(self) -> socket:
        return _checked(super()._new_conn())


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Public(HTTPAdapter):
    """Connects to public addresses only."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Have every connection checked."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
