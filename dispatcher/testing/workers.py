"""A real worker in a test: a process of its own, on the test's database."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

from django.db import connections

from dispatcher.models import Worker

_DATABASES: Final = "DISPATCHER_TEST_DATABASES"
"""The variable with the name of each database of the test, by its alias, as JSON."""
_PROGRAM: Final = f"""
import json, os
from django.conf import settings
for alias, name in json.loads(os.environ["{_DATABASES}"]).items():
    settings.DATABASES[alias]["NAME"] = name
from celery.__main__ import main
main()
"""
_READY_S: Final = 60.0
_NAP_S: Final = 0.05


@contextmanager
def worker(app: str, *options: str) -> Iterator[None]:
    """Run a Celery worker on the test's database until the block ends; it has begun to serve its queues.

    app: as of `celery -A`, such as `shop`. options: as of `celery worker`, such as `-Q`, `mail`. The test must commit:
    `TransactionTestCase`, or `django_db(transaction=True)`. Raises RuntimeError if the worker does not start.
    """
    name = f"test-{uuid4().hex[:8]}@localhost"
    names = {alias: connections[alias].settings_dict["NAME"] for alias in connections}
    command = [sys.executable, "-c", _PROGRAM, "-A", app, "worker", "-n", name, "-c", "2", *options]
    process = subprocess.Popen(command, env={**os.environ, _DATABASES: json.dumps(names)})
    try:
        until = monotonic() + _READY_S
        while not Worker.objects.filter(name=name).exists():
            if process.poll() is not None or monotonic() > until:
                message = f"the worker of the app {app} did not start; its output says why."
                raise RuntimeError(message)
            sleep(_NAP_S)
        yield
    finally:
        process.terminate()
        process.wait()
