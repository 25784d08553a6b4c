"""The ways in which a call is sent: each must come to the same."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from dispatcher.models import CallQueue
from dispatcher.request import Call


def alone(**fields: Any) -> CallQueue:
    return CallQueue.objects.send(**fields)


def within_a_transaction(**fields: Any) -> CallQueue:
    with transaction.atomic():
        return CallQueue.objects.send(**fields)


def among_many(**fields: Any) -> CallQueue:
    return CallQueue.objects.send_many([Call(task="first"), Call(**fields), Call(task="last")])[1]


SendVariant = Callable[..., CallQueue]
every_send_variant = pytest.mark.parametrize("send", [alone, within_a_transaction, among_many])
