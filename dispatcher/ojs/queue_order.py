"""The order in which a fetch reads its queues (ojs-fair-scheduling): as listed, round robin, or by weight."""

from collections.abc import Mapping, Sequence
from random import SystemRandom

_chance = SystemRandom()


def ordered(queues: Sequence[str], strategy: str, weights: Mapping[str, float]) -> list[str]:
    """Return the queues in the order of a strategy; over many fetches, each is first in proportion to its weight."""
    if strategy == "weighted":
        # The minimum of exponential variables, each with its weight as rate, is chosen in proportion to the weights.
        return sorted(queues, key=lambda queue: _chance.expovariate(max(weights.get(queue, 1.0), 1e-6)))
    if strategy in ("round-robin", "least-loaded"):
        first = _chance.randrange(len(queues)) if queues else 0
        return [*queues[first:], *queues[:first]]
    return list(queues)
