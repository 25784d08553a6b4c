"""The task of the soak."""

import json
import os
import random
from pathlib import Path
from time import monotonic, sleep

from celery import shared_task

FAILING = 0.03
"""Which part of the calls fails at its first attempts, and is tried again."""

_random = random.Random(1)  # noqa: S311 - which calls fail is no secret


class Failing(Exception):
    """Raised by a call whose turn it is to fail."""


@shared_task(name="soak.nothing")
def nothing(**order: object) -> None:
    """Do a little work, and note that it was done; some fail."""
    del order
    sleep(0.01)
    line = json.dumps({"at": monotonic(), "ended": 1, "send_ms": []})
    with Path(os.environ["SOAK_NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")
    if _random.random() < FAILING:
        raise Failing
