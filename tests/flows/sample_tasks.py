"""The Celery app of the flows and its tasks; each run, and the end of each message, is noted in a file."""

import atexit
import ctypes
import gc
import json
import os
import signal
import sys
import time
from asyncio import CancelledError
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from billiard import current_process
from celery import Celery, Task, signals
from celery.app.task import Context
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded
from celery.worker import state
from django.db import DatabaseError, transaction

from dispatcher.errors import RateLimited

# A project may have tasks of its own class, or of Celery's.
OWN = None if os.environ.get("FLOWS_PLAIN") else "dispatcher.celery:DispatchedTask"
_SET_PDEATHSIG = 1
_at_once: set[str] = set()
"""The messages that `wait_for_others` has begun in this process."""
app = Celery("flows", task_cls=OWN, set_as_current=False)
app.config_from_object("tests.flows.settings", namespace="CELERY")
app.autodiscover_tasks()


def note(what: str, task: Task | SimpleNamespace) -> None:
    """Write down what happened to a message; a line is written whole or not at all."""
    request = task.request
    line = json.dumps(
        {
            "what": what,
            "task": task.name,
            "id": request.id,
            "retries": request.retries,
            "worker": request.hostname,
            "at": time.time(),
        }
    )
    with Path(os.environ["FLOWS_NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")


def note_exit() -> None:
    """Write down how many objects the interpreter collects no more when it ends."""
    with Path(os.environ["FLOWS_EXIT"]).open("w") as file:
        file.write(str(gc.get_freeze_count()))


if "FLOWS_EXIT" in os.environ:
    atexit.register(note_exit)


@signals.task_postrun.connect
def note_end(task: Task, **_: Any) -> None:
    """Note that a message was dealt with, whether its task ran or not."""
    if "FLOWS_NOTES" in os.environ:
        note("end", task)


@signals.task_revoked.connect
def note_terminated(sender: Task, request: Context, *, terminated: bool, **_: Any) -> None:
    """Note that a running task was terminated."""
    if terminated and "FLOWS_NOTES" in os.environ:
        note("terminated", SimpleNamespace(name=sender.name, request=request))


@signals.task_failure.connect
def note_failure(sender: Task, task_id: str, exception: BaseException, **_: Any) -> None:
    """Note that a task has failed, and where the receivers learn of it."""
    if "FLOWS_NOTES" in os.environ:
        request = SimpleNamespace(id=task_id, retries=None, hostname=current_process().name)
        note(f"failed: {type(exception).__name__}", SimpleNamespace(name=sender.name, request=request))


@signals.task_retry.connect
def note_retry(sender: Task, request: Context, reason: Retry, **_: Any) -> None:
    """Note that a task is tried again, why, and where the receivers learn of it."""
    if "FLOWS_NOTES" in os.environ:
        request = SimpleNamespace(id=request.id, retries=request.retries, hostname=current_process().name)
        note(f"retried: {type(reason.exc).__name__}", SimpleNamespace(name=sender.name, request=request))


@signals.celeryd_init.connect
def receive_ends(**_: Any) -> None:
    """Take this long for each end of a call, and an hour for one that was discarded."""
    from dispatcher.signals import call_finished  # noqa: PLC0415 -- Django's apps are ready here

    seconds = float(os.environ.get("FLOWS_RECEIVER_S", "-1"))
    if seconds >= 0:
        call_finished.connect(
            lambda state, **_: time.sleep(3600 if state == "discarded" else seconds), weak=False, dispatch_uid="slow"
        )


class Unaware(Task):
    """A base class of a project that knows nothing of the dispatcher."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, as Celery's documentation shows it."""
        return self.run(*args, **kwargs)


@app.task(bind=True, base=Unaware, max_retries=2)
def unaware(self: Task, times: int) -> int:
    """Fail so many times first, and ask for more by self.retry()."""
    return int(fail_and_ask.run.__func__(self, times))


@app.task(bind=True)
def echo(self: Task, word: str) -> str:
    """Return the word."""
    note("run", self)
    return word


if not os.environ.get("FLOWS_OLD"):

    @app.task(bind=True)
    def new(self: Task) -> str:
        """Be a task that workers of the version before do not have."""
        note("run", self)
        return "new"


@app.task(bind=True)
def chosen(self: Task, refused: str = "", seconds: float = 0.0) -> str | None:
    """Return the key that was chosen for the attempt; be refused by the provider under one key."""
    from dispatcher.api import current_call  # noqa: PLC0415 -- Django's apps are ready here

    note("run", self)
    call = current_call()
    assert call is not None
    assert str(call.id) == self.request.id
    if call.key == refused:
        raise RateLimited(60)
    time.sleep(seconds)
    return call.key


@app.task(bind=True)
def nap(self: Task, seconds: float) -> None:
    """Take some time."""
    note("run", self)
    time.sleep(seconds)


@app.task(bind=True)
def hand_over(self: Task, word: str) -> Any:
    """Leave the work to another task."""
    note("run", self)
    return self.replace(echo.s(word))


@app.task(bind=True)
def echo_slowly(self: Task, word: str, seconds: float) -> str:
    """Take some time, and return what was given."""
    note("run", self)
    time.sleep(seconds)
    return word


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
def wait_for_a_file(self: Task, path: str) -> str:
    """Return when the file is there."""
    note("run", self)
    while not Path(path).exists():
        time.sleep(0.01)
    return "there"


@app.task(bind=True, soft_time_limit=3)
def wait_for_a_file_in_time(self: Task, path: str) -> str:
    """Do the same, for 3 seconds at the most."""
    return str(wait_for_a_file.run.__func__(self, path))


@app.task(bind=True)
def die(self: Task, times: int) -> str:
    """Kill the process so many times first, as the kernel does when memory runs out."""
    note("run", self)
    assert not self.request.is_eager, "this would be the end of the tests themselves"
    if self.request.retries < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.task(bind=True, retry_on_worker_lost=True, default_retry_delay=2)
def die_and_be_retried(self: Task, times: int) -> str:
    """Do the same, and let Celery try it again."""
    return str(die.run.__func__(self, times))


@app.task(bind=True)
def return_its_process(self: Task) -> int:
    """Return the pid of the process that runs it."""
    note("run", self)
    return os.getpid()


@app.task(bind=True)
def return_whether_its_events_are_written(self: Task) -> bool:
    """Return whether the loop that runs it writes the events of its calls for the main process."""
    from dispatcher.worker.shared import Shared  # noqa: PLC0415 -- Django's apps are ready here

    note("run", self)
    assert Shared.current is not None
    return Shared.current.sends_events


@app.task(bind=True)
def return_its_priority(self: Task) -> int:
    """Return the priority of its message."""
    priority: int = self.request.delivery_info["priority"]
    return priority


@app.task(bind=True)
def return_its_request(self: Task) -> list[Any]:
    """Return what a task may look at of its request."""
    note("run", self)
    request = self.request
    return [request.hostname, request.delivery_info["routing_key"], request.timelimit, request.retries]


@app.task(bind=True)
def wait_for_others(self: Task, count: int) -> None:
    """Return when so many run at once in this process."""
    note("run", self)
    _at_once.add(self.request.id)
    while len(_at_once) < count:
        time.sleep(0.01)


@app.task(bind=True)
def outlive_its_main_process(self: Task, seconds: float) -> None:
    """Kill the worker's main process, where the system does not end this one with it, and go on for so long."""
    note("run", self)
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, 0)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(seconds)


@app.task(bind=True)
def ignore_a_soft_limit(self: Task, seconds: float) -> None:
    """Take some time, and as long again when that is said to be too long."""
    note("run", self)
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        time.sleep(seconds)


@app.task(bind=True)
def leave_its_connection(self: Task, how: str) -> None:
    """Leave the connection to the database behind as no task should."""
    note("run", self)
    connection = transaction.get_connection()
    match how:
        case "without autocommit":
            transaction.set_autocommit(False)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        case "in a broken transaction":
            with suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT 1 / 0")
        case "closed":
            connection.connection.close()
        case "without tables":
            with connection.cursor() as cursor:
                cursor.execute("SET search_path = nowhere")
        case "read-only":
            with connection.cursor() as cursor:
                cursor.execute("SET default_transaction_read_only = on")


@app.task(bind=True)
def go_on_until_killed(self: Task) -> None:
    """Outlive all but the end of the process."""
    note("run", self)
    while True:
        with suppress(BaseException):
            time.sleep(0.01)
            note("alive", self)


@app.task(bind=True)
def return_its_settings(self: Task) -> list[str]:
    """Return the names of the settings that its session has."""
    note("run", self)
    with transaction.get_connection().cursor() as cursor:
        cursor.execute("SELECT name FROM pg_settings WHERE source = 'session' ORDER BY name")
        return [name for (name,) in cursor.fetchall()]


@app.task(bind=True)
def end_oddly(self: Task, how: str) -> None:
    """Raise what is no Exception."""
    note("run", self)
    if how == "timeout":
        from gevent import Timeout  # noqa: PLC0415 -- only pools of greenlets have it

        raise Timeout(1)
    raise CancelledError if how == "cancelled" else GeneratorExit


@app.task(bind=True, time_limit=2)
def clean_up(self: Task, seconds: float) -> None:
    """Take some time, and clean up."""
    note("run", self)
    try:
        time.sleep(seconds)
    finally:
        note("cleaned up", self)


@app.task(bind=True)
def reject(self: Task) -> None:
    """Reject the message."""
    note("run", self)
    raise Reject("no", requeue=False)


@app.task(bind=True)
def return_its_times(self: Task) -> list[str | None]:
    """Return when it was to start, and when it expires."""
    return [self.request.eta, self.request.expires]


@app.task(bind=True)
def break_its_loop(self: Task) -> None:
    """Have the loop that runs it, or another one of its process, raise between two calls of its batch."""
    from dispatcher.worker.loop import Loop  # noqa: PLC0415 -- Django's apps are ready here

    note("run", self)
    original = Loop._next  # noqa: SLF001 -- nothing else can make it fail

    def fail(_: Loop) -> None:
        Loop._next = original  # type: ignore[method-assign]  # noqa: SLF001
        message = "can't start new thread"
        raise RuntimeError(message)

    Loop._next = fail  # type: ignore[assignment, method-assign]  # noqa: SLF001


@app.task(bind=True)
def leave(self: Task) -> None:
    """End as a command does that calls sys.exit()."""
    note("run", self)
    sys.exit(1)


@app.task(bind=True)
def pass_headers_on(self: Task, task_id: str) -> None:
    """Send a plain message with the headers of this one."""
    note("run", self)
    echo.apply_async(args=["hello"], task_id=task_id, headers=self.request.headers)


@app.task(bind=True)
def be_rate_limited(self: Task, path: str) -> str:
    """Raise RateLimited the first time, as for a provider's 429."""
    note("run", self)
    if not Path(path).exists():
        Path(path).touch()
        raise RateLimited(1)
    return "done"


@app.task(bind=True)
def be_rate_limited_by_a_strange_key(self: Task) -> None:
    """Name a key that PostgreSQL can't store."""
    note("run", self)
    raise RateLimited(1, key="\0")


@app.task(bind=True)
def outlive_a_cold_shutdown(self: Task, seconds: float) -> None:
    """Let the worker shut down, as SIGQUIT does once all is cancelled that can be, and go on for so long."""
    note("run", self)
    state.should_terminate = True
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        note("alive", self)
