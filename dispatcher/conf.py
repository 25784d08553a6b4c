"""The DISPATCHER setting, as one frozen dataclass; read live, so that tests can override it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from celery import current_app
from django.conf import settings

from dispatcher.errors import ConfigurationError
from dispatcher.states import Delivery


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Constants of the engine; operators have no basis to choose other values. Tests and trials replace TUNING."""

    horizon: timedelta = timedelta(milliseconds=200)
    """How far ahead of its start a throttled call may be taken: it waits in a worker process for so long.

    At least twice `min_pause`, or a throttle runs dry between two looks of a tick.
    """
    margin: timedelta = timedelta(milliseconds=50)
    """How much longer than its period a window counts a start: the way from the claim to the provider."""
    min_pause: timedelta = timedelta(milliseconds=25)
    """The least time between two looks of one tick: 40 a second keep up with any throttle."""
    publish_pause: timedelta = timedelta(seconds=5)
    """How long publishing backs off after the broker was unreachable: each try costs a connection timeout."""
    reschedule_after: timedelta = timedelta(seconds=5)
    """When a rescheduled call is tried again if the opening time of its limit is unknown."""
    pipeline: bool = True
    """Send statements that do not need each other's rows together; every pooler that is supported lets them through."""


TUNING = Tuning()
"""The constants in force."""


@dataclass(frozen=True, kw_only=True)
class Conf(Tuning):
    """The settings of the dispatcher; durations are timedeltas, or seconds as a number.

    Numbers and durations are from 0 unless the metadata of the field has their range.
    """

    database: str = "default"
    """The alias of the database that holds the calls."""
    keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policies by key name, made when missing and never changed after; `tenant:*` is a template."""
    retry: Mapping[str, Any] = field(default_factory=dict)
    """The retry policy of calls that bring none (see retry.Retry)."""
    tasks: Mapping[str, Any] | Sequence[Any] = field(default_factory=dict)
    """The keys that calls of existing tasks spend, by task name or pattern, as Celery's task_routes (see limited)."""
    celery_rate_limits: str = field(default="worker", metadata={"words": ("worker", "global")})
    """What a task's own `rate_limit` means: `worker`, what it does in Celery; `global`, the key `task:NAME`."""
    unticketed: str = field(default="enqueue", metadata={"words": ("enqueue", "run")})
    """What a worker does with a message of a limited task that was sent without its limits: `enqueue` it, or `run`."""
    queue_order: str = field(default="weights", metadata={"words": ("weights", "strict")})
    """In which order a worker serves its direct queues: by their `weights`, or the `strict` one of its option `-Q`."""
    dispenser_queue: str = "dispatcher"
    """The Celery queue of the dispenser's own tasks."""
    delivery: Mapping[str, str] = field(default_factory=dict)
    """How the calls of a queue reach its workers, by queue or template (`email*`): direct (others), broker or http.

    It counts when the first lane of a queue is made, or a worker first serves it; from then on the queue's row does.
    """
    max_payload_bytes: int = field(default=1_048_576, metadata={"least": 1})
    """The most that args, kwargs, call_data and meta of one call may take as JSON."""
    batch: int = field(default=500, metadata={"least": 1})
    """The most calls that one trip of the dispenser dispatches, and that one statement of a tick moves."""
    ramp: timedelta = timedelta(seconds=10)
    """How long after a block of a key what is in flight grows again, from 1 on; 0 lets all go at once."""
    tick: timedelta = field(default=timedelta(seconds=1), metadata={"least": timedelta.resolution})
    """How often beat starts the dispenser, and how long one run goes on serving what falls due."""
    queue_grace: timedelta | None = timedelta(seconds=30)
    """How long a queue counts as served after its last worker is gone; None: a queue needs no known worker."""
    dispatch_ahead: int = field(default=1_000, metadata={"least": 1})
    """The most calls of one queue that are on their way to its workers."""
    dispatch_lease: timedelta = timedelta(minutes=5)
    """How long a dispatched call may stay unclaimed before its message counts as lost."""
    run_lease: timedelta = timedelta(seconds=60)
    """How long the lease of a running call lasts without a heartbeat."""
    visibility: timedelta = timedelta(minutes=5)
    """How long the lease of a call that was fetched over HTTP lasts without a heartbeat."""
    heartbeat: timedelta = timedelta(seconds=15)
    """How often a worker renews the leases of all that it holds."""
    patience: timedelta = timedelta(seconds=60)
    """How long a worker retries to claim a call, or to record its end, while the database is unavailable."""
    poison_after: int = field(default=3, metadata={"least": 1, "most": 2**15 - 1})
    """After how many attempts in a row that killed their process a call is discarded as poison."""
    publish_after: timedelta = timedelta(seconds=2)
    """How long a call may stay dispatched and unpublished before a tick publishes it."""
    recover_every: timedelta = timedelta(seconds=10)
    """How often beat starts the recovery."""
    fallback_schedule: bool = True
    """Workers run the periodic tasks by themselves where nothing else has for some periods; False leaves it to beat."""
    retention: Mapping[str, timedelta | None] = field(default_factory=dict)
    """How long ended calls are kept, by state; None keeps them. See RETENTION for the defaults."""
    unused_retention: timedelta | None = timedelta(days=30)
    """How long lanes, and keys that were made from templates, are kept without calls; None keeps them."""
    event_retention: timedelta | None = None
    """How long events of limits and queues are kept for the HTTP API; None records none."""
    change_retention: timedelta | None = timedelta(days=366)
    """How long the history of keys is kept: who changed, paused, blocked or resumed them; None keeps it."""
    cleanup_budget: timedelta = timedelta(minutes=10)
    """How long one cleanup may take."""
    http_anonymous: Sequence[str] = ()
    """The scopes of requests to the HTTP API without credentials."""
    http_origins: Sequence[str] = ()
    """The origins whose pages may use the HTTP API (CORS)."""
    http_max_block: timedelta = timedelta(hours=1)
    """The longest time for which one report over HTTP may block the keys of its job; `admin` has no bound."""
    http_allowed_hosts: Sequence[str] = ()
    """The hosts and networks that HTTP calls (`call_data`) and webhooks may reach in addition to public addresses."""
    http_waiters: int = 2
    """The most requests of one server process that may wait at once: for a job, an event, or room in a queue.

    Each holds a thread: fewer than the process has.
    """
    http_waiters_per_token: int | None = None
    """The most of them of one token; None: as many as there may be."""
    prepared_statements: bool | None = None
    """Prepare the engine's statements; None: not where DISABLE_SERVER_SIDE_CURSORS indicates a pooler."""


RETENTION: Mapping[str, timedelta | None] = {
    "completed": timedelta(days=7),
    "cancelled": timedelta(days=7),
    "discarded": timedelta(days=30),
}


class _Last:
    """The setting as it was last read, so that reading it live costs nothing."""

    given: object = None
    conf = Conf()


def conf() -> Conf:
    """Return the settings in force. Raises ConfigurationError naming what is unknown or of the wrong type.

    They follow a new DISPATCHER (as tests set one), not a change inside the dict.
    """
    given = getattr(settings, "DISPATCHER", None)
    if given is not _Last.given:
        _Last.conf = _read({} if given is None else given)
        _Last.given = given
    return _Last.conf


def counting() -> dict[str, timedelta]:
    """Return the settings by which the functions room and opening count what a key allows."""
    settings = conf()
    return {"horizon": settings.horizon, "margin": settings.margin, "ramp": settings.ramp}


def queue_grace() -> timedelta | None:
    """Return the grace in force: None where tasks run in the sender's own process, and no worker is needed."""
    return None if is_eager() else conf().queue_grace


def needs_worker() -> bool:
    """Return whether calls of a queue are dispatched only while a live worker serves it."""
    return queue_grace() is not None


def process_silence() -> timedelta:
    """Return after which time without a heartbeat no sender wakes a worker."""
    return 3 * conf().heartbeat


def is_eager() -> bool:
    """Return whether Celery runs tasks in the sender's own process."""
    return bool(current_app.conf.task_always_eager)


def eager_propagates() -> bool:
    """Return whether Celery runs tasks in the sender's own process and raises there what they raise."""
    return is_eager() and bool(current_app.conf.task_eager_propagates)


def settable() -> dict[str, Any]:
    """Return the names that DISPATCHER may hold, each with the type of its value."""
    constants = {each.name for each in fields(Tuning)}
    return {each.name: each.type for each in fields(Conf) if each.name not in constants}


def read(given: object) -> tuple[Conf, list[str]]:
    """Return the settings, with defaults for those that are wrong, and what is wrong with these."""
    if not isinstance(given, Mapping):
        return Conf(**asdict(TUNING)), [f"DISPATCHER is {given!r}: give a dict of settings."]
    known = settable()
    values: dict[str, Any] = asdict(TUNING)
    problems = [_unknown(str(name), known) for name in given if name not in known]
    for name in [name for name in given if name in known]:
        try:
            values[name] = _value(name, given[name], known[name])
        except ConfigurationError as error:
            problems.append(str(error))
    return Conf(**values), problems


def out_of_range(settings: Conf) -> Iterator[str]:
    """Yield what is wrong with values, and between them."""
    for each in fields(Conf):
        value, where = getattr(settings, each.name), f"DISPATCHER[{each.name!r}]"
        least, most = each.metadata.get("least"), each.metadata.get("most")
        if isinstance(value, timedelta) and value < (least or timedelta(0)):
            yield f"{where} must {'not be negative' if value < timedelta(0) else 'be longer than 0'}."
        if isinstance(value, int) and not (least or 0) <= value <= (most or value):
            yield f"{where} is {value!r}: give a whole number from {least or 0}{f' to {most}' if most else ''}."
    chosen: dict[str, tuple[object, Collection[str]]] = {
        f"DISPATCHER['delivery'][{queue!r}]": (each, list(Delivery)) for queue, each in settings.delivery.items()
    }
    chosen |= {
        f"DISPATCHER[{each.name!r}]": (getattr(settings, each.name), each.metadata["words"])
        for each in fields(Conf)
        if "words" in each.metadata
    }
    for where, (value, words) in chosen.items():
        if value not in words:
            yield f"{where} is {value!r}: give one of {', '.join(words)}."
    if settings.heartbeat * 2 > settings.run_lease:
        yield "DISPATCHER['run_lease'] must be at least twice DISPATCHER['heartbeat'], or calls that run are lost."
    for state, kept in settings.retention.items():
        where = f"DISPATCHER['retention'][{state!r}]"
        if state not in RETENTION:
            yield f"{where} is not an ended state; use {', '.join(RETENTION)}."
        if kept is not None and (not isinstance(kept, timedelta) or kept < timedelta(0)):
            yield f"{where} is {kept!r}: give a timedelta or seconds from 0, or None to keep them."


def _read(given: object) -> Conf:
    settings, problems = read(given)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return settings


def _unknown(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
    return f"DISPATCHER[{name!r}] is not a setting: {hint}"


def _value(name: str, value: Any, kind: Any) -> Any:
    """Return a setting's value. Raises ConfigurationError if it is not of the setting's kind."""
    kinds = [get_origin(each) or each for each in (get_args(kind) if get_origin(kind) is UnionType else [kind])]
    if value is None and NoneType in kinds:
        return None
    kind = kinds[0]
    is_bool = isinstance(value, bool)
    with suppress(ValueError, OverflowError):
        is_text = Sequence in kinds and isinstance(value, str)
        if any(isinstance(value, each) for each in kinds) and is_bool == (kind is bool) and not is_text:
            return {state: _kept(each) for state, each in value.items()} if name == "retention" else value
        if kind is timedelta and isinstance(value, int | float) and not is_bool:
            return timedelta(seconds=value)
    message = f"DISPATCHER[{name!r}] is {value!r}: give {_KINDS[kind]}{_EXAMPLES.get(name, '')}."
    raise ConfigurationError(message)


def _kept(kept: Any) -> Any:
    """Return a retention as a timedelta where it is seconds."""
    return timedelta(seconds=kept) if isinstance(kept, int | float) and not isinstance(kept, bool) else kept


_KINDS = {
    timedelta: "a timedelta, or seconds as a number",
    Mapping: "a dict",
    Sequence: "a list of texts",
    str: "a text",
    int: "a whole number",
    bool: "True or False",
}
_EXAMPLES = {
    "keys": ', such as {"api.example.com": {"concurrency": 5}}',
    "tasks": ' or a list of these and of routers, such as {"emails.tasks.*": ["smtp"]}',
    "retry": ', such as {"max_attempts": 5}',
    "retention": ', such as {"completed": timedelta(days=1)}',
}
