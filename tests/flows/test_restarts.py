"""A worker of the default delivery, without a broker, goes on when PostgreSQL was restarted under it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import dj_database_url
import pytest
from django.db import connections

from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from project.run_dirs import ROOT
from project.services import Server, postgres
from tests.flows import sample_tasks
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import audit
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.direct, pytest.mark.slow, pytest.mark.usefixtures("sending")]

COUNT = 60


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server of the test's own, at which its connection is."""
    with postgres(tmp_path_factory.mktemp("restarts")) as server:
        of_others = connections["default"]
        own = connections["default"] = connections.create_connection("default")
        own.settings_dict = own.settings_dict | dj_database_url.parse(server.url)
        try:
            migrate = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
            subprocess.run(migrate, cwd=ROOT, env={**os.environ, "DATABASE_URL": server.url}, check=True)
            yield server
        finally:
            own.close()
            connections["default"] = of_others


@pytest.fixture
def worker(server: Server, processes: Processes) -> Iterator[Processes]:
    """Have a worker up at that server."""
    env = {"DATABASE_URL": server.url, "CELERY_BROKER_URL": "memory://", "FLOWS_FALLBACK": "1"}
    processes.start_worker("second", env=env)
    processes.stack.wait_ready()
    yield processes
    processes.stack.kill("second")


def test_a_worker_whose_database_is_restarted_runs_each_call_once(worker: Processes, server: Server) -> None:
    Queue.objects.update_or_create(name=QUEUE, defaults={"delivery": "direct"})
    RateLimitKey.objects.declare("api", concurrency=2)
    nap = Call(sample_tasks.nap, args=[0.05], keys=["api"], queue=QUEUE)
    calls = CallQueue.objects.send_many([nap] * COUNT)
    # Fast, and immediate as in a crash.
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGINT, signal.SIGQUIT):
        done = CallQueue.objects.filter(state__in=TERMINAL).count()
        eventually(lambda done=done: CallQueue.objects.filter(state__in=TERMINAL).count() > done)
        server.end(how)
        time.sleep(0.3)
        server.start()
        connections["default"].close()
    eventually(lambda: not CallQueue.objects.exclude(state__in=TERMINAL).exists(), within=30)
    assert {(call.state, call.attempt) for call in CallQueue.objects.all()} == {(State.COMPLETED, 1)}
    assert {worker.noted(call.id) for call in calls} == {1}
    assert worker.most_at_once([call.id for call in calls])[None] == 2
    audit()
