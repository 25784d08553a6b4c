"""What the third parties of the trial allow, and the names under which the witness knows them."""

from project.shop.limits import Policy

SIDE_KEY = "queue:side"
"""What the witness calls the key of the second queue, whose name differs from run to run."""
TENANTS = ("acme", "bolt", "crux")
DEAR_COST = 3

KEYS: dict[str, Policy] = {
    "pay": {"concurrency": 3, "throttle": {"limit": 8, "period": "PT1S"}},
    "mail": {"rate": {"limit": 8, "period": "PT1S"}},
    "partner": {"concurrency": 4},
    "tenant:*": {"concurrency": 2},
    "tokens": {"concurrency": 6},
    "ledger": {"concurrency": 1},
    "courier": {"concurrency": 2},
    "strict": {"concurrency": 2},
}
"""The `DISPATCHER["keys"]`, without the queue's own key."""

SIDE: Policy = {"concurrency": 3}
"""The limits of the second queue itself."""


def published() -> dict[str, Policy]:
    """Return each key's limits for the witness, who counts requests: of those that cost 3 fewer fit."""
    named = {name: policy for name, policy in KEYS.items() if not name.endswith("*")}
    tenants = {f"tenant:{tenant}": KEYS["tenant:*"] for tenant in TENANTS}
    dear: Policy = {"concurrency": KEYS["tokens"]["concurrency"] // DEAR_COST}
    return named | tenants | {SIDE_KEY: SIDE, "tokens.dear": dear}
