"""The model publishes to a broker inside this process, as the races do."""

import pytest

from tests.races.conftest import mailbox

_PARTS = ("pair", "turns", "machine", "workers", "moments", "operators", "faults")
pytest.register_assert_rewrite(*(f"tests.model.{part}" for part in _PARTS), "tests.drive")

__all__ = ["mailbox"]
