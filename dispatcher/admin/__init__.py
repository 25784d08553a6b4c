"""The Django admin: watch calls and keys, and steer them."""

from dispatcher.admin.calls import CallAdmin
from dispatcher.admin.keys import KeyAdmin

__all__ = ["CallAdmin", "KeyAdmin"]
