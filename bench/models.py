"""The bare tables: the columns of a call and nothing of the dispatcher, and six columns."""

import uuid_utils.compat as uuid7
from django.db import models
from django.db.models.functions import Now

from dispatcher.models import CallQueue


def _columns() -> "dict[str, models.Field[object, object]]":
    """Return the columns of a call; its lane as a number."""
    return {
        field.get_attname(): models.BigIntegerField() if field.is_relation else field.clone()
        for field in CallQueue._meta.concrete_fields
    }


BareCall: type[models.Model] = type(
    "BareCall",
    (models.Model,),
    {
        "__module__": __name__,
        "__doc__": "What a project would write without the dispatcher; bench/sql/make_bare.sql makes its table.",
        "Meta": type("Meta", (), {"managed": False, "db_table": "bench_call"}),
        **_columns(),
    },
)


class PlainRow(models.Model):
    """The least that a project would write to have something done later."""

    id = models.UUIDField(primary_key=True, default=uuid7.uuid7)
    task = models.CharField(max_length=255)
    args = models.JSONField()
    kwargs = models.JSONField()
    queue = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        managed = False
        db_table = "bench_plain"

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
