"""What the tests of the HTTP API share."""

from collections.abc import Callable

import pytest
from pytest_django import Settings

from tests.edges.conftest import boss  # noqa: F401
from tests.ojs.http_client import Api


@pytest.fixture
def open_http(settings: Settings) -> None:
    """Let everybody do everything over HTTP, and keep an event log."""
    settings.DISPATCHER = {"http_anonymous": ["admin"], "event_retention": 3_600}


@pytest.fixture
def api(open_http: None) -> Api:
    """Give a client of an HTTP API that is open to all."""
    del open_http
    return Api()


@pytest.fixture
def holder(settings: Settings) -> Callable[..., Api]:
    """Give what makes a token with these scopes, and returns a client that shows it."""
    from dispatcher.ojs.auth import make_token  # noqa: PLC0415 -- needs the apps

    settings.DISPATCHER = {}
    return lambda *scopes, name="me": Api(Authorization=f"Bearer {make_token(name, scopes)}")
