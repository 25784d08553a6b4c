"""What the models of the dispatcher share: the database that they are in."""

from django.db import models

from dispatcher.managers import Manager


class Clock(models.Func):
    """The time by the database's clock, read where the statement comes to it: after the locks that it waits for."""

    function = "clock_timestamp"
    output_field = models.DateTimeField()


class Record(models.Model):
    """A row in the database that DISPATCHER["database"] names."""

    objects = Manager()

    class Meta:
        abstract = True
