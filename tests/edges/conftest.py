"""What the tests at the edges share."""

import pytest
from django.test import Client


@pytest.fixture
def boss() -> Client:
    """Log in somebody who may do everything in the admin."""
    from django.contrib.auth.models import User  # noqa: PLC0415 -- needs the apps

    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client
