"""The servers of a test run: embedded ones, unless DATABASE_URL and CELERY_BROKER_URL name others."""

import os
from contextlib import ExitStack

import django
import psycopg
import pytest
from django.conf import settings

from project.services import Services, embedded

SERVICES = pytest.StashKey[Services]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, and only then set up Django, whose settings read where the servers are."""
    if settings.configured:
        message = "Unset DJANGO_SETTINGS_MODULE: the settings must not be loaded before the servers are up."
        raise pytest.UsageError(message)
    running = ExitStack()
    config.add_cleanup(running.close)
    services = running.enter_context(embedded(name="tests"))
    config.stash[SERVICES] = services
    if services.owns_database:
        _stop_waiting_for_the_disk(services.database_url)
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    django.setup()


def pytest_report_header(config: pytest.Config) -> str:
    """Say which servers are used."""
    services = config.stash[SERVICES]
    return f"database: {services.database_url}, broker: {services.broker_url}"


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """Return where the servers are, for tests that start processes of their own."""
    return pytestconfig.stash[SERVICES]


def _stop_waiting_for_the_disk(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute("SELECT pg_reload_conf()")
