"""Each rule is shown for every delivery; `direct`, the product's default, comes first."""

from collections.abc import Iterator
from typing import Any

import pytest

from project.celery import app as project_app
from tests.clock import Clock, stopped_clock
from tests.races.lockstep import Mailbox, app

pytest.register_assert_rewrite("tests.drive")

DELIVERIES = ("direct", "broker", "http")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each delivery, or for those that its marker `deliveries` names; some do not keep the rule yet."""
    if "drive" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("deliveries")
        broken = metafunc.definition.get_closest_marker("broken")
        fails = pytest.mark.xfail(strict=True, raises=AssertionError, reason=broken and broken.kwargs["reason"])
        metafunc.parametrize(
            "drive",
            [
                pytest.param(name, marks=[fails] if broken and name in (broken.args or DELIVERIES) else [])
                for name in (DELIVERIES if marker is None else marker.args)
            ],
            indirect=True,
        )


@pytest.fixture
def clock(transactional_db: None) -> Iterator[Clock]:
    """Stop the database's clock."""
    with stopped_clock() as clock:
        yield clock


@pytest.fixture
def drive(request: pytest.FixtureRequest, clock: Clock, settings: Any) -> Iterator[Any]:
    """Return the verbs of one delivery; afterwards the whole database is checked against the invariants."""
    from tests.deliveries import DRIVES  # noqa: PLC0415 -- there are no models when this file is read
    from tests.races.audit import audit  # noqa: PLC0415 -- the same

    settings.DISPATCHER = {}
    app.set_current()
    # What the test before has left at the broker.
    for queue in ("mail", "brokers"):
        Mailbox(queue).empty()
    drive = DRIVES[request.param](clock, "mail")
    yield drive
    project_app.set_current()
    audit(has_ended=False, limits_changed=drive.has_other_limits, now=clock.now)
