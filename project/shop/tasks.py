"""The tasks of the shop. Plain Celery tasks: not one of them knows that it is limited.

Each sends the third party its call's id and the keys that it spends, so that the witness can keep its books.
"""

from celery import Task, current_task, shared_task

from dispatcher import handlers
from project.shop import third_party


@shared_task(bind=True)
def count_stock(self: Task, shelf: int, *, seconds: float) -> int:
    """Count a shelf of the shop's own, without a limit; return the shelf."""
    third_party.ask("stock", keys=[], call=self.request.id, seconds=seconds)
    return shelf


@shared_task(bind=True)
def charge(self: Task, order: int, *, seconds: float) -> int:
    """Charge the customer of an order; return the order."""
    third_party.ask("charges", keys=["api.payments"], call=self.request.id, seconds=seconds)
    return order


@shared_task(bind=True)
def sync_tenant(self: Task, tenant: str, page: int, *, seconds: float) -> int:
    """Send one page of a tenant's catalogue to the partner that all tenants share; return the page."""
    third_party.ask("catalogue", keys=["partner", f"tenant:{tenant}"], call=self.request.id, seconds=seconds)
    return page


@shared_task(bind=True)
def report(self: Task, name: str, *, keys: list[str], seconds: float) -> str:
    """Draw up a report; one that reads the books spends the key `ledger` in addition to its queue's own."""
    third_party.ask("reports", keys=["queue:reports", *keys], call=self.request.id, seconds=seconds)
    return name


@shared_task(bind=True)
def ship(self: Task, parcel: int, *, failures: int, seconds: float) -> int:
    """Hand a parcel to the courier, who fails so many times first; every time is an attempt."""
    third_party.ask("parcels", keys=["courier"], call=self.request.id, seconds=seconds, failures=failures)
    return parcel


@handlers.register("send_email")
def send_email(*, to: str, seconds: float) -> str:
    """Send an e-mail, called by `send(call_data={"method": "send_email", "params": {...}})`; return `to`."""
    third_party.ask("mail", keys=["mail"], call=current_task.request.id, seconds=seconds)
    return to
