"""Directories under `.run/`: one per running stack, held by a lock that ends with its process."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / ".run"
ADDRESSES = "addresses.json"
ATTACHABLE = ("run", "demo")
SPARES = 8


class RunDirBusy(RuntimeError):
    """Raised when another process holds the run_dir: stop that one first (is `make run` up elsewhere?)."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        super().__init__(f"{run_dir} is in use by another process: stop that one first.")


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers of a running stack listen."""

    database_url: str
    broker_url: str


@contextmanager
def acquire(name: str, *, spares: bool = False) -> Iterator[Path]:
    """Hold the run_dir `.run/name` while inside; with `spares`, `name-2`, `name-3`, ... if it is in use.

    Raises RunDirBusy when there is none left.
    """
    names = [name, *(f"{name}-{number}" for number in range(2, SPARES + 1) if spares)]
    for run_dir in (RUN / name for name in names):
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / "lock").open("w") as lock:
            if _is_locked_now(lock):
                yield run_dir
                return
    raise RunDirBusy(RUN / name)


def publish(run_dir: Path, addresses: Addresses) -> None:
    """Write the addresses down for other processes; they count only while the run_dir is held."""
    (run_dir / ADDRESSES).write_text(json.dumps(vars(addresses)))


def running_addresses() -> Addresses | None:
    """Return the addresses of the stack that runs now (`make run` first, then the demo), or None."""
    for run_dir in (RUN / name for name in ATTACHABLE):
        with suppress(FileNotFoundError, json.JSONDecodeError), (run_dir / "lock").open() as lock:
            if not _is_free(lock):
                return Addresses(**json.loads((run_dir / ADDRESSES).read_text()))
    return None


def secret_key() -> str:
    """Return the key that signs this checkout's sessions: made at first use, kept in `.run/secret_key`."""
    path = RUN / "secret_key"
    if not path.exists():
        RUN.mkdir(exist_ok=True)
        draft = RUN / f"secret_key.{os.getpid()}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(50))
        # Two processes may be here at once: a link is made whole or not at all, and the first one stays.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text()


def _is_locked_now(lock: IO[str]) -> bool:
    # `running_addresses` tests a lock by taking it for a moment: look again before giving up.
    for _ in range(3):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def _is_free(lock: IO[str]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False
