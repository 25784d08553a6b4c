"""The database router: it keeps the dispatcher's tables in the database that DISPATCHER["database"] names.

A project with more than one database lists it in DATABASE_ROUTERS. Managers, the admin, forms and migrations then use
that database, as the engine does.
"""

from typing import Any, Final

from django.db.models import Model

from dispatcher.conf import conf

_APPS: Final = ("dispatcher", "dispatcher_ojs")


class DispatcherRouter:
    """Route the models of the dispatcher, and no others."""

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        """Return the dispatcher's database for its own models."""
        return conf().database if model._meta.app_label in _APPS else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        """Let the dispatcher's tables be made in its own database only."""
        return db == conf().database if app_label in _APPS else None
