"""Fixtures of pytest: `pytest_plugins = ["dispatcher.testing.plugin"]` in the conftest.py of a project's root.

They need pytest-django. `drain`, `perform`, `at` and `worker` need no fixture: import them from `dispatcher.testing`.
"""

from collections.abc import Iterator

import pytest

from dispatcher import testing


@pytest.fixture
def inline_calls(db: None) -> Iterator[None]:
    """Run each call when it is sent: `dispatcher.testing.inline`."""
    del db
    with testing.inline():
        yield


@pytest.fixture
def captured_calls(db: None) -> Iterator[testing.Captured]:
    """Record what is sent, and let it wait: `dispatcher.testing.capture`."""
    del db
    with testing.capture() as captured:
        yield captured
