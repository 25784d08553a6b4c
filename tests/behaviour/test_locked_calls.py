"""Locked calls: somebody who keeps a call locked holds up that call, and no worker."""

import pytest

from dispatcher import api
from tests.drive import Drive
from tests.races.lockstep import holding


@pytest.mark.deliveries("direct")
def test_a_worker_rests_beside_a_locked_call_and_a_key_that_is_blocked(drive: Drive) -> None:
    drive.key(concurrency=2)
    drive.send("api")
    locked = drive.send("api", priority=5)
    api.block("api", 30)
    with holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [locked.id]):
        assert drive.take() == []
