"""Where webhooks are posted: over TLS, and again to where a redirect leads (ojs-webhooks, section 8.4)."""

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
"""The redirects that a post may follow as it is; 303 asks for a GET, which would deliver nothing."""


def problem_of(url: str) -> str | None:
    """Return why a webhook may not post to a URL, as far as that can be seen without asking for its address."""
    if (problem := outbound.problem_of(url)) is not None:
        return problem
    host = outbound.host_of(url)
    if urlsplit(url).scheme == "https" or outbound.is_allowed(host, host):
        return None
    return f"{url!r} is not https: what is posted could be read and changed on its way. Use https, {outbound.REMEDY}"


def post(url: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    """Post, again to where a redirect leads, and return the answer: a 2xx, or what is no redirect from 400.

    Raises TargetRefused where nothing may be posted to, HTTPError at a redirect that leads nowhere.
    """
    for _ in range(1 + _REDIRECTS):
        if (problem := problem_of(url)) is not None:
            raise TargetRefused(problem)
        answer = outbound.request("post", url, data=body, headers=headers, allow_redirects=False, stream=True)
        if not HTTPStatus.MULTIPLE_CHOICES <= answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        leads_to = answer.headers.get("Location", "")
        if answer.status_code not in _REPEATED or not leads_to:
            break
        url = urljoin(url, leads_to)
    message = f"{answer.status_code} {answer.reason}: it redirects to {leads_to or 'nowhere'}, so nothing is delivered"
    raise requests.HTTPError(message, response=answer)
