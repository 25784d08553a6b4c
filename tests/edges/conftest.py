"""What the tests at the edges share."""

import pytest
from pytest_django import Settings

from tests.edges.ojs import Api


@pytest.fixture
def open_http(settings: Settings) -> None:
    """Let everybody do everything over HTTP, and keep a journal."""
    settings.DISPATCHER = {"http_anonymous": ["admin"], "journal": 3_600}


@pytest.fixture
def api(open_http: None) -> Api:
    """Give a client of an HTTP face that is open to all."""
    del open_http
    return Api()
