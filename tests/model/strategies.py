"""What the machine asks for: limits, lanes, calls; few and small, so that they meet each other often."""

from datetime import timedelta

from hypothesis import strategies as st

from tests.model.rules import Lane, Limits, Retry

NAMES = ("a", "b", "queue:one", "c", "each")
PERIODS = {"a": 10, "b": 2, "queue:one": 1, "c": 60, "each": 5}
PER_WORKER = "each"
"""The key with a limit per worker: only calls that workers take may spend it."""


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def limits_of(name: str) -> st.SearchStrategy[Limits]:
    """Give limits of one key: mostly tight ones for the first, and one length of window for each key."""
    is_tight = name == NAMES[0]
    window = st.tuples(st.integers(1, 4), st.just(seconds(PERIODS[name])))
    return st.builds(
        Limits,
        concurrency=st.sampled_from([1, 2, 3, None, None] if is_tight else [None, None, None, 1, 2]),
        rate=st.one_of(st.none(), window) if is_tight else st.one_of(st.none(), st.none(), window),
        throttle=st.sampled_from([None] * 9 + [(10, seconds(1)), (1, seconds(1)), (20, seconds(3))]),
        per_worker=st.sampled_from([1, 1, 2, 3]) if name == PER_WORKER else st.none(),
    )


names = st.sampled_from(NAMES)
numbers = st.integers(0, 20)
waits = st.sampled_from([0.05, 0.3, 1, 2.5, 10, 30]).map(seconds)
shared = st.tuples(
    st.sampled_from(["one", "one", "two", "direct", "direct", "direct", "other", "http", "http"]),
    st.sampled_from([("a",), ("a",), ("a",), ("a",), ("a", "b"), ("a", "c"), ("b",), ("a", "b", "c"), ()]),
)
per_worker = st.tuples(
    st.sampled_from(["direct", "direct", "other", "http"]),
    st.sampled_from([(PER_WORKER,), ("a", PER_WORKER), ("b", PER_WORKER)]),
)
lanes = st.builds(
    lambda where, priority, on_limit: Lane(where[0], priority, on_limit, where[1]),
    st.one_of(shared, shared, shared, per_worker),
    st.sampled_from([0, 0, 0, 5]),
    st.sampled_from(["wait", "wait", "wait", "wait", "wait", "reschedule", "drop"]),
)
retries = st.sampled_from(
    [
        Retry(1, seconds(1), 1, seconds(1)),
        Retry(2, seconds(4), 2, seconds(60)),
        Retry(3, seconds(2), 3, seconds(5)),
        Retry(9, seconds(1), 1, seconds(1)),
    ]
)
drafts = st.fixed_dictionaries(
    {"lane": lanes, "cost": st.integers(1, 3), "retry": retries},
    optional={"scheduled_in": waits, "expires_in": waits},
)
