"""The HTTP API whose functions are not installed yet: a fetch is to be tried again, and succeeds when they are."""

from collections.abc import Callable

import pytest

from tests.ojs.http_client import Api
from tests.releases import install, uninstall
from tests.steps.test_deploys import is_the_remedy, reports  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def test_a_fetch_is_answered_with_503_until_the_functions_are_there(
    api: Api,
    reports: Callable[[], list[str]],  # noqa: F811
) -> None:
    api.push()
    uninstall()
    for _ in range(2):
        answer = api.post("/workers/fetch", {"queues": ["default"]}, status=503)
        assert (answer["error"]["retryable"], api.last.headers["Retry-After"]) == (True, "1")
    assert is_the_remedy(reports)
    install()
    assert len(api.fetch()) == 1
    assert is_the_remedy(reports)
