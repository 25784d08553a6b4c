"""What the processes of a trial, or of the soak, write down as they go: lines in files that outlive them."""

import json
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

BEGINS = "begins"
"""The file of what tasks note."""
ORDERS = "orders"
"""The file of what senders note."""


def directory() -> Path:
    """Return the directory of this run's notes."""
    return Path(os.environ["CHAOS_NOTES"])


def write(path: Path, what: str, *, is_kept: bool = False, **facts: object) -> None:
    """Append one line, whole or not at all; `is_kept` waits until it is on the disk."""
    line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **facts})
    file = _opened(path, os.getpid())
    os.write(file, f"{line}\n".encode())
    if is_kept:
        os.fsync(file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file in order; none if nothing was written."""
    if path.exists():
        with path.open() as lines:
            yield from map(json.loads, lines)


@cache
def _opened(path: Path, pid: int) -> int:
    """Return the file of this process: a child opens its own."""
    del pid
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
