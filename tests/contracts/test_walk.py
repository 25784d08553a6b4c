"""The page of the walk and the code agree: files, steps, folders of statements, and their order."""

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from celery.app.trace import build_tracer
from django.utils import timezone

import dispatcher
from dispatcher.models import CallQueue, Process, Queue
from dispatcher.states import State
from dispatcher.worker.loop import Loop, Options
from dispatcher.worker.shared import Shared
from dispatcher.worker.trips import Trips
from tests.builders import HERE, committed
from tests.contracts.source import PACKAGE, ROOT
from tests.races.lockstep import app

PAGE = (ROOT / "docs" / "explanation" / "how-it-works.md").read_text()
WALK = re.findall(r"^\| \*\*(.+?)\*\* \|(.*)$", PAGE, re.MULTILINE)
FILES = re.findall(r"^\| \d+ \| `(.+?)` \| `(\w+)` \|", PAGE, re.MULTILINE)
PATHS = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)) - {"dispatcher/"}


def modules(folder: str) -> set[str]:
    """Return the modules and packages of a folder."""
    found = [path for path in (PACKAGE / folder).iterdir() if not path.name.startswith("__")]
    return {f"{folder}/{path.name}" if path.is_file() else f"{folder}/{path.name}/" for path in found}


def test_every_file_that_the_page_names_exists() -> None:
    assert {path for path in PATHS if not (PACKAGE / path).exists()} == set()


def test_the_page_names_every_step_and_every_folder_of_statements() -> None:
    assert modules("lifecycle") - PATHS == set()
    assert modules("sql") - PATHS == set()


def test_the_order_of_the_walk_is_the_one_that_the_package_lists() -> None:
    listed = re.findall(r"^(\w+) {2,}\S", dispatcher.__doc__ or "", re.MULTILINE)
    walked = [step for step, _ in WALK]
    assert walked == ["send", "wait", "take", "run", "retention", "publish", "claim"]
    assert [step for step in listed if step in walked] == [step for step in walked if step in listed]
    assert {"send", "take", "run", "publish", "claim"} <= set(listed)


def test_each_step_of_the_walk_names_its_module() -> None:
    for step, line in WALK:
        assert re.search(r"`[\w/]+(\.py|/)`", line), f"{step} names no file"
        if (PACKAGE / "lifecycle" / f"{step}.py").exists():
            assert f"`lifecycle/{step}.py`" in line


@committed
@pytest.mark.session
def test_a_direct_call_meets_the_files_of_its_walk_in_the_order_of_the_page() -> None:
    """From its send to the record of its end, in one thread."""
    assert 0 < len(FILES) <= 15
    Queue.objects.create(name="mail", delivery="direct")
    Process.objects.create(id=uuid4(), queues=["mail"], idle_at=timezone.now())  # The send looks for who may be woken.
    app.set_current()
    shared = Shared()
    shared.write_queues({"mail": 1})
    trips = Trips(HERE.id, ["walked"], shared)

    @app.task(name="walked")
    def task() -> None:
        trips.leave()

    task.__trace__ = build_tracer(task.name, task, app.loader, "here", app=app)
    loop = Loop(app, 0, trips, shared, Options(worker=HERE.id, hostname="here", tasks=[task.name], is_forked=False))

    def walk() -> None:
        CallQueue.objects.send(task, queue="mail")
        loop.run()
        loop.finish()

    try:
        met = called_by(walk)
    finally:
        shared.close()
    assert CallQueue.objects.get().state == State.COMPLETED
    assert [each for each in FILES if each not in met] == []
    assert sorted(FILES, key=met.index) == FILES


def called_by(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the functions of the package that this calls, each with its file, in the order of their first calls."""
    met: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            met.setdefault((frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return [*met]
