"""Outbound requests of webhooks: over TLS, with redirects followed (ojs-webhooks, section 8.4)."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests

from dispatcher import outbound
from dispatcher.errors import TargetRefused

_REDIRECTS: Final = 3
_REPEATED: Final = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
"""Redirects that repeat the POST; 303 asks for a GET, which delivers nothing."""


def problem_of(url: str) -> str | None:
    """Return why a webhook may not post to a URL, or None; the address is not resolved."""
    if (problem := outbound.problem_of(url)) is not None:
        return problem
    host = outbound.host_of(url)
    if urlsplit(url).scheme == "https" or outbound.is_allowed(host, host):
        return None
    return f"{url!r} is not https: the post could be read and changed in transit. Use https, {outbound.REMEDY}"


def post(url: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    """Post, follow redirects, and return the response: a 2xx, or any status from 400.

    Raises TargetRefused if the target is not allowed, HTTPError if a redirect cannot be followed.
    """
    for _ in range(1 + _REDIRECTS):
        if (problem := problem_of(url)) is not None:
            raise TargetRefused(problem)
        response = outbound.request("post", url, data=body, headers=headers, allow_redirects=False, stream=True)
        if not HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        location = response.headers.get("Location", "")
        if response.status_code not in _REPEATED or not location:
            break
        url = urljoin(url, location)
    message = (
        f"{response.status_code} {response.reason}: it redirects to {location or 'nowhere'}, so nothing is delivered"
    )
    raise requests.HTTPError(message, response=response)
