"""What was sent: recorded, and held back."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from unittest.mock import patch

from dispatcher import groups, validate
from dispatcher.engine import sent
from dispatcher.lifecycle.send import Draft
from dispatcher.messages import broker
from dispatcher.models import CallQueue

Write = Callable[[Sequence[Draft]], list[CallQueue]]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A call as it was sent. keys: the cost of each key that it spends."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    keys: dict[str, int]
    queue: str
    scheduled_at: datetime | None
    call: CallQueue = field(repr=False, compare=False)


class Captured:
    """What was sent, in order."""

    def __init__(self) -> None:
        """Have nothing yet."""
        self.calls: list[Sent] = []

    def assert_sent(
        self,
        task: object,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        keys: Collection[str] | Mapping[str, int] | None = None,
        times: int | None = None,
    ) -> list[Sent]:
        """Return the calls of a task, or of its name, that were sent so; raise AssertionError if there is none.

        args, kwargs, keys: None is any. keys: the names of all keys that the call spends, or {name: cost} of all.
        times: how many there must be; 0 for none at all.
        """
        name = getattr(task, "name", task)
        wanted = {
            "args": None if args is None else _as_stored("args", list(args)),
            "kwargs": None if kwargs is None else _as_stored("kwargs", dict(kwargs)),
            "keys": None if keys is None else _costs(keys),
        }
        asked = {field: value for field, value in wanted.items() if value is not None}
        found = [
            each
            for each in self.calls
            if each.task == name and all(_matches(getattr(each, field), value) for field, value in asked.items())
        ]
        if len(found) != times if times is not None else not found:
            words = ", ".join([f"task={name!r}", *(f"{field}={value!r}" for field, value in asked.items())])
            number = "at least once" if times is None else f"{times} times"
            seen = "".join(f"\n  {each}" for each in self.calls) or " nothing"
            message = f"({words}) was to be sent {number}, and was {len(found)} times; sent were:{seen}"
            raise AssertionError(message)
        return found


@contextmanager
def capture() -> Iterator[Captured]:
    """Record what is sent inside. The calls are written, so that errors are as always, and wait: see `drain`."""
    captured = Captured()
    write = sent.write

    def write_and_record(drafts: Sequence[Draft]) -> list[CallQueue]:
        calls = write(drafts)
        captured.calls += [_sent(draft, call) for draft, call in zip(drafts, calls, strict=True)]
        return calls

    with replaced(write_and_record):
        yield captured


@contextmanager
def replaced(write: Write) -> Iterator[None]:
    """Let all sends be written by this, and publish none of them."""
    with broker.kept_to_itself(), patch.object(sent, "write", write):
        yield


def _sent(draft: Draft, call: CallQueue) -> Sent:
    return Sent(
        task=call.task,
        args=validate.from_json(call.args),
        kwargs=validate.from_json(call.kwargs),
        keys={name: draft.costs.get(name, 1) for name in draft.kind.names},
        queue=call.queue,
        scheduled_at=call.scheduled_at,
        call=call,
    )


def _as_stored(field: str, value: Any) -> Any:
    """Return arguments as a task gets them, by the way through the database."""
    return validate.from_json(json.loads(validate.json_text(field, value, has_celerys=True)))


def _costs(keys: Collection[str] | Mapping[str, int]) -> dict[str, int | None]:
    """Return the cost of each key; None is any."""
    return {groups.key_name(name): keys[name] if isinstance(keys, Mapping) else None for name in keys}


def _matches(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict) and None in wanted.values():
        return found.keys() == wanted.keys()
    return bool(found == wanted)
