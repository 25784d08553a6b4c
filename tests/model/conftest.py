"""The model publishes to a broker inside this process, as the races do."""

import pytest

from tests.races.conftest import mailbox

pytest.register_assert_rewrite("tests.model.pair", "tests.model.machine")

__all__ = ["mailbox"]
