"""In beat: the messages of the dispenser's tasks fill no log."""

import logging
from typing import Any

from celery import signals

from dispatcher.celery import periodic


class _Quiet(logging.Filter):
    """Leaves out beat's line "Sending due task" for the dispenser's tasks: the tick alone would write 86,400 a day."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is to be written."""
        is_sending = isinstance(record.msg, str) and record.msg.startswith("Scheduler: Sending due task")
        task = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        return not (is_sending and record.levelno == logging.INFO and task in periodic.works())


_quiet = _Quiet()


@signals.beat_init.connect
def be_quiet(**_: Any) -> None:
    """Keep what is sent every second out of the log."""
    logging.getLogger("celery.beat").addFilter(_quiet)
