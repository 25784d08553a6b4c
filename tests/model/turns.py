"""Whose turn it is: by priority first, then lane by lane, so that none is passed over more than once a round."""

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from tests.model.rules import Lane, Rules


class Turns:
    """How often each lane was passed over since its last turn, and by which."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.passed: Counter[tuple[Lane, Lane]] = Counter()
        self.passed_at: dict[tuple[Lane, Lane], datetime] = {}

    def note(
        self,
        call_id: UUID,
        now: datetime,
        *,
        aside: Collection[UUID],
        queues: Collection[str],
        parked: Collection[Lane],
        must: bool,
    ) -> None:
        """Note that a call goes, which waits until now; `queues`: those whose calls could go in its place.

        aside: calls that wait alone, and hold nothing up. parked: lanes whose turn on a key counts, whatever their
        queues. must: no lane may be passed over for the second time.
        """
        lane = self.rules.calls[call_id].lane
        waiting = {
            other: next((each for each in calls if each not in aside), None)
            for other, calls in self.rules.waiting(now).items()
        }
        self.passed = Counter(
            {(one, other): count for (one, other), count in self.passed.items() if one != lane and waiting.get(one)}
        )
        for other, head in waiting.items():
            seen = [*queues, other.queue] if other in parked else queues
            if head and other != lane and other.priority == lane.priority and self.is_behind(head, call_id, seen):
                # A trip that finds no free worker for a lane of another queue passes it over with all that it starts.
                if other.queue not in queues and self.passed_at.get((other, lane)) == now:
                    continue
                self.passed_at[other, lane] = now
                self.passed[other, lane] += must
                assert self.passed[other, lane] < 2, f"{lane} has passed {other} twice, which could go, at {now}"

    def is_behind(self, waits: UUID, goes: UUID, queues: Collection[str]) -> bool:
        """Return whether a call could have gone where another did, which asks for as much or more."""
        one, other = self.rules.calls[waits], self.rules.calls[goes]
        costs, more = self.rules.costs(one), self.rules.costs(other)
        return one.lane.queue in queues and all(name in more and cost <= more[name] for name, cost in costs.items())

    def check_priorities(self, gone: Collection[UUID], heads: Collection[UUID], queues: Collection[str]) -> None:
        """Assert that no call of higher priority stays behind one that went and asks for no less."""
        for head in heads:
            for call_id in gone:
                lower, higher = self.rules.calls[call_id], self.rules.calls[head]
                is_passed = higher.lane.priority > lower.lane.priority and self.is_behind(head, call_id, queues)
                assert not is_passed, f"{lower} passed {higher}"
