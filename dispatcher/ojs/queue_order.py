"""In which order one fetch looks at its queues (ojs-fair-scheduling): as they are named, in turns, or by weight."""

from collections.abc import Mapping, Sequence
from random import SystemRandom

_chance = SystemRandom()


def ordered(queues: Sequence[str], strategy: str, weights: Mapping[str, float]) -> list[str]:
    """Return the queues in the order of a strategy; over many fetches each comes first as often as it weighs."""
    if strategy == "weighted":
        # The smallest of exponential times, each at the rate of its weight, is chosen in proportion to the weights.
        return sorted(queues, key=lambda queue: _chance.expovariate(max(weights.get(queue, 1.0), 1e-6)))
    if strategy in ("round-robin", "least-loaded"):
        first = _chance.randrange(len(queues)) if queues else 0
        return [*queues[first:], *queues[:first]]
    return list(queues)
