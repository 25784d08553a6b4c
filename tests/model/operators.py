"""What people do: they pause, block and resume keys, change limits, override them, and move calls."""

from collections.abc import Callable
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dispatcher import api
from tests.model.pair import Pair
from tests.model.rules import ALWAYS, NEVER, TERMINAL, Limits, Rules
from tests.model.strategies import limits_of, names, numbers, waits


class Operators:
    """People with access to keys and calls."""

    pair: Pair
    rules: Rules
    sent: int
    compare: Callable[..., None]

    @rule(name=names, wait=waits, what=st.sampled_from(["pause", "resume", "resume", "block"]))
    def close_or_open(self, name: str, wait: timedelta, what: str) -> None:
        if name in self.pair.touched.keys:
            return
        now, key = self.pair.begin(), self.rules.keys[name]
        match what:
            case "pause":
                key.is_paused = True
                api.pause(name)
            case "resume":
                key.is_paused, key.blocked_until = False, ALWAYS
                api.resume(name)
            case _:
                key.blocked_until = max(key.blocked_until, now + wait)
                api.block(name, wait)
        self.compare()

    @rule(data=st.data(), name=names, wait=waits, what=st.sampled_from(["limit", "override", "override", "end"]))
    def change_limits(self, data: st.DataObject, name: str, wait: timedelta, what: str) -> None:
        if name not in self.pair.touched.keys:
            limits = data.draw(st.one_of(limits_of(name), st.just(Limits(concurrency=0))))
            self.put_limits(name, limits, wait, what)

    def put_limits(self, name: str, limits: Limits, wait: timedelta, what: str) -> None:
        now, key = self.pair.begin(), self.rules.keys[name]
        match what:
            case "limit":
                key.put(now, own=limits, other=key.other, until=key.other_until)
                api.limit(name, limits._asdict())
            case "override":
                named = {field: value for field, value in limits._asdict().items() if value is not None}
                key.put(now, own=key.own, other=key.own._replace(**named), until=now + wait)
                api.override(name, until=now + wait, **named)
            case _:
                key.put(now, own=key.own)
                api.end_override(name)
        self.compare()

    @precondition(lambda self: self.rules.calls)
    @rule(picks=st.lists(numbers, min_size=1, max_size=3), what=st.sampled_from(["cancel", "retry", "run_now"]))
    def move_calls(self, picks: list[int], what: str) -> None:
        known = list(self.rules.calls)
        ids = list(dict.fromkeys(known[pick % len(known)] for pick in picks))
        ids = [call_id for call_id in ids if self.pair.is_free(call_id)]
        if not ids:
            return
        self.pair.begin()
        states = {
            "cancel": ("scheduled", "available", "dispatched", "retryable"),
            "retry": TERMINAL,
            "run_now": ("scheduled", "available", "retryable"),
        }[what]
        movable = [call_id for call_id in self.rules.in_state(*states) if call_id in ids]
        for call_id in reversed(movable):
            call = self.rules.calls[call_id]
            if what == "run_now":
                self.sent += 1
                call.position = -self.sent
            if what == "retry":
                call.attempt, call.crashes, call.returns, call.expires_at = 0, 0, 0, NEVER
            call.move("cancelled" if what == "cancel" else "available")
        assert sorted({"cancel": api.cancel, "retry": api.retry, "run_now": api.run_now}[what](ids)) == sorted(movable)
        self.compare()
