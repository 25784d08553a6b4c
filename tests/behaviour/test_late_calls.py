"""Late calls: one that did not start in time ends as `discarded`, wherever it waits or waited."""

from datetime import timedelta

import pytest

from dispatcher.states import State
from tests.drive import Drive


@pytest.mark.deliveries("http")
def test_a_call_that_expired_while_it_was_fetched_is_discarded_by_the_tick_that_ends_its_lease(drive: Drive) -> None:
    call = drive.send(expires_at=drive.clock.now + timedelta(minutes=1))
    assert drive.take()
    drive.forward(600)
    assert drive.state(call) == State.DISCARDED
