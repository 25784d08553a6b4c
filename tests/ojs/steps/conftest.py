"""The steps of the HTTP API publish to the same broker as those of the core."""

from tests.steps.conftest import broker, direct  # noqa: F401
