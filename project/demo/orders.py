"""What the shop sends in the demo, in all the ways in which a project would."""

from collections.abc import Iterable
from contextlib import suppress

from django.db import transaction

from dispatcher.models import CallQueue
from dispatcher.request import Call
from project.demo.summary import Sent
from project.shop.tasks import charge, count_stock, report, ship, sync_tenant

SHELVES = 96
CHARGES = 110
MAILS = 110
FLOOD = 200
DRIP = 10
REPORTS = 30
PARCELS = 6
FAILURES = 2
ROLLED_BACK = 10


class OutOfStock(Exception):
    """Raised when an order can't be kept after its charge was sent."""


def open_up() -> list[str]:
    """Send calls without a key, which nothing limits: they keep every process busy, and so warm it up."""
    shelves = [Call(task=count_stock, args=[shelf], kwargs={"seconds": 0.05}) for shelf in range(SHELVES)]
    return _ids(CallQueue.objects.send_many(shelves))


def place(unlimited: list[str]) -> Sent:
    """Send what is limited, the flood before what it must not hold up; return it with what was sent before."""
    return Sent(
        flood=_sync("acme", pages=FLOOD),
        drip=_sync("bolt", pages=DRIP),
        flaky=_ship(),
        others=[*unlimited, *_reports(), *_charge(), *_mail()],
        rolled_back=_charge_and_roll_back(),
    )


def _sync(tenant: str, *, pages: int) -> list[str]:
    """Send many at once, each under the partner's limits and the tenant's."""
    return _ids(
        CallQueue.objects.send_many(
            Call(
                task=sync_tenant,
                args=[tenant, page],
                kwargs={"seconds": 0.25},
                keys=["partner", f"tenant:{tenant}"],
            )
            for page in range(pages)
        )
    )


def _ship() -> list[str]:
    """Send calls that fail before they succeed, with their own retry policy."""
    retry = {"max_attempts": FAILURES + 1, "initial_interval": "PT0.3S"}
    kwargs = {"failures": FAILURES, "seconds": 0.1}
    return _ids(
        CallQueue.objects.send(ship, args=[parcel], kwargs=kwargs, keys=["courier"], retry=retry)
        for parcel in range(PARCELS)
    )


def _reports() -> list[str]:
    """Send to a queue that has limits of its own; every other report reads the books as well."""
    keys = [["ledger"] if number % 2 else [] for number in range(REPORTS)]
    return _ids(
        CallQueue.objects.send(
            report,
            args=[f"report {number}"],
            kwargs={"keys": spent, "seconds": 0.3},
            keys=spent,
            queue="reports",
        )
        for number, spent in enumerate(keys)
    )


def _charge() -> list[str]:
    """Send in the transaction of the orders; some charges take long: now the pace binds, now the number."""
    with transaction.atomic():
        return _ids(
            CallQueue.objects.send(
                "project.shop.tasks.charge",
                args=[order],
                kwargs={"seconds": 0.6 if order // 20 % 2 else 0.1},
                keys=["api.payments"],
            )
            for order in range(CHARGES)
        )


def _mail() -> list[str]:
    """Send calls that name a method instead of a task."""
    addresses = [f"customer{number}@example.com" for number in range(MAILS)]
    return _ids(
        CallQueue.objects.send_many(
            Call(call_data={"method": "send_email", "params": {"to": to, "seconds": 0.1}}, keys=["mail"])
            for to in addresses
        )
    )


def _charge_and_roll_back() -> list[str]:
    """Send in transactions that fail afterwards: these calls never existed."""
    never: list[str] = []
    for order in range(ROLLED_BACK):
        with suppress(OutOfStock), transaction.atomic():
            call = CallQueue.objects.send(charge, args=[order], kwargs={"seconds": 0.1}, keys=["api.payments"])
            never.append(str(call.pk))
            raise OutOfStock
    return never


def _ids(calls: Iterable[CallQueue]) -> list[str]:
    """Return the ids of calls, which are sent as they are asked for."""
    return [str(call.pk) for call in calls]
