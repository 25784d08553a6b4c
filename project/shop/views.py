"""The shop's page: it takes orders, and sends what they need in the transaction of the request."""

from datetime import timedelta

from django.contrib.admin.views.decorators import staff_member_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from dispatcher.models import CallQueue
from dispatcher.reports import rate_limit_status
from dispatcher.request import Call
from project.shop.limits import TENANTS
from project.shop.tasks import charge, report, sync_tenant

MOST = 500
SHOWN = 20


@staff_member_required
@require_http_methods(["GET", "POST"])
def orders(request: HttpRequest) -> HttpResponse:
    """Show the keys and the latest calls; a POST takes as many orders as its `count` says, 1 to 500."""
    if request.method == "POST":
        count = request.POST.get("count", "")
        if not count.isdecimal() or not 1 <= int(count) <= MOST:
            return HttpResponse(f"count: {count!r} must be a whole number from 1 to {MOST}.", status=400)
        with transaction.atomic():
            place(int(count))
        return redirect("shop")
    latest = CallQueue.objects.order_by("-created_at", "-position")[:SHOWN]
    return render(request, "shop/orders.html", {"keys": rate_limit_status(), "calls": latest, "most": MOST})


def place(count: int) -> list[CallQueue]:
    """Send what orders need: a charge and an e-mail each, a page of each tenant's catalogue, and a report for later."""
    now = timezone.now()
    calls = [
        *(Call(charge, args=[order], kwargs={"seconds": 0.2}, keys=["api.payments"]) for order in range(count)),
        *(
            Call(
                call_data={"method": "send_email", "params": {"to": f"{order}@example.com", "seconds": 0.1}},
                keys=["mail"],
            )
            for order in range(count)
        ),
        *(
            Call(sync_tenant, args=[tenant, 1], kwargs={"seconds": 0.5}, keys=["partner", f"tenant:{tenant}"])
            for tenant in TENANTS
        ),
        Call(
            report,
            args=["orders"],
            kwargs={"keys": ["ledger"], "seconds": 1.0},
            keys=["ledger"],
            queue="reports",
            scheduled_at=now + timedelta(hours=1),
        ),
    ]
    return CallQueue.objects.send_many(calls)
