"""The options of a call that only an Open Job Spec job has."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dispatcher import validate
from dispatcher.request import Call, Extras


@dataclass(frozen=True, kw_only=True)
class OjsOptions(Extras):
    """Options that the HTTP API has checked; see `models.Job` for those that are stored."""

    timeout: timedelta | None = None
    visibility: timedelta | None = None
    unique_key: str | None = None
    envelope: Mapping[str, Any] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the call needs a row of `Job`."""
        return (self.timeout, self.visibility, self.unique_key, self.envelope) != (None,) * 4

    def text(self) -> str | None:
        """Return the envelope as JSON."""
        return None if self.envelope is None else validate.json_text("envelope", self.envelope)


def options_of(call: Call) -> OjsOptions:
    """Return the options of a call to send."""
    return call.extras if isinstance(call.extras, OjsOptions) else OjsOptions()
