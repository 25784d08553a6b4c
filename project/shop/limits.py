"""What each third party of the shop allows: the `DISPATCHER["keys"]` of the project."""

from typing import TypedDict


class Pace(TypedDict):
    """So many starts in an ISO 8601 `period`: in any window of it (`rate`), or evenly spaced (`throttle`)."""

    limit: int
    period: str


class Policy(TypedDict, total=False):
    """The limits of one key; one that is left out does not limit."""

    concurrency: int
    rate: Pace
    throttle: Pace


TENANTS = ("acme", "bolt")

KEYS: dict[str, Policy] = {
    # The payment provider minds both how many charges run and how fast they follow each other.
    "api.payments": {"concurrency": 4, "throttle": {"limit": 10, "period": "PT1S"}},
    # The mail relay counts what it took in any second, wherever that begins.
    "mail": {"rate": {"limit": 10, "period": "PT1S"}},
    # The partner is shared by all tenants; one may use all of it while the others have nothing to send.
    "partner": {"concurrency": 5},
    "tenant:*": {"concurrency": 5},
    # The books are written by one hand.
    "ledger": {"concurrency": 1},
    # The queue's own key: it applies to every call in the queue `reports`.
    "queue:reports": {"concurrency": 3},
    # The courier fails now and then; two parcels at a time.
    "courier": {"concurrency": 2},
}


def published() -> dict[str, Policy]:
    """Return each key's limits by its exact name, the templates spelt out for the tenants that exist."""
    named = {name: policy for name, policy in KEYS.items() if not name.endswith("*")}
    return named | {f"tenant:{tenant}": KEYS["tenant:*"] for tenant in TENANTS}
