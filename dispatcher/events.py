"""Signals that a project may listen to. Each is sent after the commit of what it tells."""

from django.dispatch import Signal

call_finished = Signal()
"""An attempt ended. Arguments: call_id (UUID), state (State), error (dict or None)."""

call_dropped = Signal()
"""A limit discarded a call that asked for it. Arguments: call_id (UUID), key (name)."""

policy_ignored = Signal()
"""A call brought a policy that differs from the stored one, which stands. Arguments: key, given, stored."""
