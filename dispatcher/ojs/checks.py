"""System checks of the app."""

from typing import Any

from django.core import checks

from dispatcher.conf import conf
from dispatcher.errors import ConfigurationError
from dispatcher.ojs.auth import SCOPES


@checks.register("dispatcher")
def check_anonymous(**_: Any) -> list[checks.CheckMessage]:
    """Check the scopes of requests without credentials: E002."""
    try:
        given = conf().http_anonymous
    except ConfigurationError:
        # Which dispatcher.checks reports.
        return []
    return [
        checks.Error(
            f"DISPATCHER['http_anonymous'] has {scope!r}: give scopes of {', '.join(SCOPES)}, such as read or "
            "fetch:mail*.",
            id="dispatcher.E002",
        )
        for scope in given
        if str(scope).partition(":")[0] not in SCOPES
    ]
