"""Tasks as projects have them: with retries, callbacks, workflows, and a base class of their own."""

from typing import Any

from celery import Task, chain, chord, group, shared_task


class Signed(Task):
    """A base class whose apply_async adds a header to each message."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the task, signed."""
        headers = {**(options.pop("headers", None) or {}), "signed_by": "bookshop"}
        return super().apply_async(args, kwargs, headers=headers, **options)


@shared_task(bind=True, base=Signed)
def sign(self: Task, order: int) -> str:
    """Return who has signed the message."""
    return f"order {order} is signed by {(self.request.headers or {}).get('signed_by')}"


@shared_task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0)
def charge(self: Task, order: int) -> str:
    """Ask a provider that does not answer at first."""
    if self.request.retries < 2:  # noqa: PLR2004 -- any number would do
        raise ConnectionError
    return f"order {order} is paid at try {self.request.retries + 1}"


@shared_task(bind=True)
def refuse(self: Task, order: int) -> None:
    """Fail, and with no retry."""
    message = f"order {order} is refused at try {self.request.retries + 1}"
    raise ValueError(message)


@shared_task
def price(order: int) -> int:
    """Return what an order costs."""
    return 10 * order


@shared_task(bind=True)
def quote(self: Task, order: int) -> int:
    """Leave the work to another task."""
    replaced: int = self.replace(price.s(order))
    return replaced


@shared_task(bind=True)
def quote_all(self: Task, orders: int) -> int:
    """Leave the work to a workflow."""
    replaced: int = self.replace(chord([price.s(each) for each in range(orders)], total.s()))
    return replaced


@shared_task
def total(prices: list[int]) -> int:
    """Add up."""
    return sum(prices)


@shared_task
def receipt(paid: object) -> str:
    """Write a receipt for what a task returned."""
    return f"receipt: {paid}"


@shared_task
def report(task_id: str) -> str:
    """Report a task that has failed."""
    return f"{task_id} has failed"


@shared_task
def remind() -> str:
    """Run periodically."""
    return "reminded"


def start(order: int) -> dict[str, Any]:
    """Start all of it, as the views of a shop do; return the results to wait for."""
    paid = charge.apply_async([order], link=receipt.s())
    refused = refuse.apply_async([order], link_error=report.s().set(task_id=f"{order:08}-0000-4000-8000-000000000000"))
    return {
        "sign": sign.delay(order),
        "charge": paid,
        "refuse": refused,
        "countdown": price.apply_async([order], countdown=0.2),
        "chain": chain(price.s(order), price.s(), receipt.s()).delay(),
        "group": group(price.s(each) for each in range(order)).delay(),
        "chord": chord([price.s(each) for each in range(order)], total.s()).delay(),
        "replaced in a chain": chain(quote.s(order), price.s(), receipt.s()).delay(),
        "replaced in a chord": chord([quote.s(1), price.s(2)], total.s()).delay(),
        "replaced by a workflow": quote_all.apply_async([order], link=receipt.s()),
        "replaced by a workflow in a chord": chord([quote_all.s(order), price.s(2)], total.s()).delay(),
        "chord in a chain": chain(price.s(1), group(price.s(), price.s()), total.s(), receipt.s()).delay(),
    }


def wait(results: dict[str, Any], *, timeout: float = 60) -> dict[str, str]:
    """Return what came of all of it."""
    found = {}
    for name, result in results.items():
        try:
            found[name] = repr(result.get(timeout=timeout))
        except ValueError as error:
            found[name] = repr(error)
    (following,) = results["charge"].children
    return found | {"link": following.get(timeout=timeout)}
