"""What the tests at the edges share."""

from collections.abc import Callable

import pytest
from django.test import Client
from pytest_django import Settings

from tests.edges.ojs import Api


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


@pytest.fixture
def boss() -> Client:
    """Log in somebody who may do everything in the admin."""
    from django.contrib.auth.models import User  # noqa: PLC0415 -- needs the apps

    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client
