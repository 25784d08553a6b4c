"""What the models of the dispatcher share: the database that they are in."""

from django.db import models

from dispatcher.managers import Manager


class Record(models.Model):
    """A row in the database that DISPATCHER["database"] names."""

    objects = Manager()

    class Meta:
        abstract = True
