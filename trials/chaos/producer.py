"""A sender of the trial: `python -m trials.chaos.producer`; it places orders until a signal says stop."""

import os
import signal
import time
from random import Random

import django
from django.db import close_old_connections

PAUSE = 0.1


def main() -> None:
    """Place one order after the other."""
    django.setup()
    from trials.chaos import orders  # noqa: PLC0415 - models and tasks need Django to be set up

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    chance = Random(f"{os.environ['CHAOS_NAME']} {os.getpid()}")  # noqa: S311 - it is for variety
    print("sending", flush=True)
    while not stopped:
        time.sleep(chance.uniform(0, 2 * PAUSE))
        close_old_connections()
        orders.place_next(chance)


main()
