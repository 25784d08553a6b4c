"""The races publish to a broker inside this process; no worker is about, unless a test plays one."""

from collections.abc import Iterator

import pytest

from project.celery import app as project_app
from tests.races.lockstep import Mailbox, app


@pytest.fixture(autouse=True)
def mailbox() -> Iterator[Mailbox]:
    """Return what the broker holds; empty at first."""
    app.set_current()
    mailbox = Mailbox()
    mailbox.empty()
    yield mailbox
    project_app.set_current()
