"""The task of the soak, and the cleanup that its worker does all the time."""

import os
import random
from datetime import timedelta
from pathlib import Path
from time import sleep

from celery import shared_task

from dispatcher import engine
from dispatcher.celery import periodic
from trials import notes

FAILING = 0.03
"""Which part of the calls fails at its first attempts, and is tried again."""

periodic.register("soak.cleanup", every=timedelta(seconds=5), run=engine.cleanup)
_random = random.Random(1)  # noqa: S311 - which calls fail is no secret


class Failing(Exception):
    """Raised by a call whose turn it is to fail."""


@shared_task(name="soak.nothing")
def nothing(**order: object) -> None:
    """Do a little work, and note that it was done; some fail."""
    del order
    sleep(0.01)
    notes.write(Path(os.environ["SOAK_NOTES"]), "end")
    if _random.random() < FAILING:
        raise Failing
