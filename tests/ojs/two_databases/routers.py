"""Orders are where the calls are that they inherit from."""

from typing import Any


class OrdersRouter:
    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return "calls" if model._meta.app_label == "two_databases" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return db == "calls" if app_label == "two_databases" else None
