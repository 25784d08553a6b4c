"""A mixin for models that people only view."""

from django.db.models import Model
from django.http import HttpRequest


class ReadOnlyAdmin:
    """A ModelAdmin that adds, changes and deletes nothing; its actions have permissions of their own."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse."""
        del request, obj
        return False
