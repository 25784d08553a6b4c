"""A model that inherits from calls, so that a cascade can reach them."""

from django.db import models

from dispatcher.models import CallQueue


class Order(models.Model):
    number = models.PositiveIntegerField()

    def __str__(self) -> str:
        return str(self.number)


class OrderCall(CallQueue):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
