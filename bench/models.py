"""The bare table: the columns of a call and nothing of the dispatcher."""

from django.db import models

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
