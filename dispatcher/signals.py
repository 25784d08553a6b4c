"""Signals that a project may listen to. Each is sent after the commit of what it reports.

Receivers that fail are logged; they change nothing for the sender, the engine or other receivers.
"""

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger(__name__)


class _Event(Signal):
    """A signal whose failing receivers are logged, also those without a name: a partial, an instance of a class."""

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        """Log a failure; Django's own version fails by itself if the receiver has no `__qualname__`."""
        logger.error("a receiver of a signal failed: %r", receiver, exc_info=err)


call_finished = _Event()
"""An attempt ended. Arguments: call_id (UUID), state (State), error (dict or None)."""

call_dropped = _Event()
"""A limit discarded a call with `on_limit="drop"`. Arguments: call_id (UUID), key (name)."""

policy_ignored = _Event()
"""A call has a policy that differs from the stored one, which applies. Arguments: key, given, stored."""
