"""The Celery app of the stories and its tasks; each run, and the end of each message, is noted in a file."""

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

from dispatcher.errors import RateLimited

app = Celery("stories", task_cls="dispatcher.celery:DispatchedTask", set_as_current=False)
app.config_from_object("tests.flows.settings", namespace="CELERY")
app.autodiscover_tasks()


def note(what: str, task: Task) -> None:
    """Write down what happened to a message; a line is written whole or not at all."""
    line = json.dumps(
        {"what": what, "task": task.name, "id": task.request.id, "retries": task.request.retries, "at": time.time()}
    )
    with Path(os.environ["FLOWS_NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")


@signals.task_postrun.connect
def note_end(task: Task, **_: Any) -> None:
    """Note that a message was dealt with, whether its task ran or not."""
    if "FLOWS_NOTES" in os.environ:
        note("end", task)


@app.task(bind=True)
def echo(self: Task, word: str) -> str:
    """Return the word."""
    note("run", self)
    return word


@app.task(bind=True)
def nap(self: Task, seconds: float) -> None:
    """Take some time."""
    note("run", self)
    time.sleep(seconds)


@app.task(bind=True)
def block(self: Task, seconds: float) -> None:
    """Keep everything busy that shares the interpreter's turn, as a greenlet that never yields does."""
    note("run", self)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@app.task(bind=True)
def wait_and_ask(self: Task, seconds: float) -> None:
    """Take some time, and make sure then that it was not too much."""
    note("run", self)
    time.sleep(seconds)
    self.ensure_held()
    note("asked and still holds it", self)


@app.task(bind=True)
def fail(self: Task, times: int) -> int:
    """Fail so many times first; return the number of the attempt."""
    note("run", self)
    if self.request.retries < times:
        message = f"attempt {self.request.retries + 1}"
        raise ValueError(message)
    return self.request.retries + 1


@app.task(bind=True, autoretry_for=(ValueError,), default_retry_delay=0, max_retries=2)
def fail_and_be_retried(self: Task, times: int) -> int:
    """Do the same, and let Celery's autoretry_for ask for more."""
    return int(fail.run.__func__(self, times))


@app.task(bind=True, max_retries=2)
def fail_and_ask(self: Task, times: int) -> int:
    """Do the same, and ask for more by self.retry()."""
    try:
        return int(fail.run.__func__(self, times))
    except ValueError as error:
        raise self.retry(exc=error, countdown=0.05) from None


@app.task(bind=True, max_retries=2)
def fail_and_name_a_time(self: Task, times: int) -> int:
    """Do the same, and ask for more at a time, half a second from now by this machine's clock."""
    try:
        return int(fail.run.__func__(self, times))
    except ValueError as error:
        raise self.retry(exc=error, eta=datetime.now(UTC) + timedelta(seconds=0.5)) from None


@app.task(bind=True, time_limit=1)
def outstay(self: Task, times: int) -> str:
    """Take longer than the time limit so many times first."""
    note("run", self)
    if self.request.retries < times:
        time.sleep(60)
    return "in time"


@app.task(bind=True)
def die(self: Task, times: int) -> str:
    """Kill the process so many times first, as the kernel does when memory runs out."""
    note("run", self)
    assert not self.request.is_eager, "this would be the end of the tests themselves"
    if self.request.retries < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.task(bind=True)
def be_told_to_stop(self: Task, path: str) -> str:
    """Hear from the provider, the first time, that it is too much."""
    note("run", self)
    if not Path(path).exists():
        Path(path).touch()
        raise RateLimited(1)
    return "done"
