"""The errors that the dispatcher raises; each names the field and the remedy."""

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


class DispatcherError(Exception):
    """The base of every error that the dispatcher raises on purpose.

    `args` are what it was made of, by position: of these pickle, and a result backend that keeps JSON, make it again.
    """

    def __init__(self, *words: str) -> None:
        """Say what is wrong, and what to do."""
        self.words = "\n".join(words)

    def __str__(self) -> str:
        """Return the words."""
        return self.words

    def __repr__(self) -> str:
        """Return the words with the class, as logs show them."""
        return f"{type(self).__name__}({self.words!r})"


class FieldInvalid(DispatcherError, ValueError):
    """A field of a call or of a policy is invalid; nothing was written."""

    index: int | None = None
    """The place of the call among those of a `send_many`, from 0."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the field, then the problem with its remedy."""
        self.field = field
        super().__init__(f"{field}: {problem}")


class CallInvalid(FieldInvalid):
    """A field of a call is invalid; nothing was written. Correct `field` and send again."""


class CallNeverRuns(CallInvalid):
    """A call costs more of a key than the key ever has room for. Lower the cost or raise the limit."""


class CallTooLarge(CallInvalid):
    """A call's payload is over `max_payload_bytes`. Send a reference to the content in its place."""


class PolicyInvalid(FieldInvalid):
    """A policy's field is missing, out of range or unknown."""


class UnknownKey(CallInvalid):
    """A call names a key that does not exist: a typo must never mean "unlimited"."""

    def __init__(self, names: list[str], known: Iterable[str] = ()) -> None:
        """List the names that were not found; known: those that exist, of which the closest are suggested."""
        self.names = names
        near = _near(names, known)
        self.args = names, near
        if groups := [name for name in names if name.endswith("*")]:
            example = groups[0].replace("*", "1")
            super().__init__(
                "keys",
                f"no rate limit key matches {', '.join(map(repr, groups))}. Declare the keys that any_of may choose "
                f'first: RateLimitKey.objects.declare("{example}", concurrency=5), or DISPATCHER["keys"] in the '
                "settings.",
            )
            return
        super().__init__(
            "keys",
            f"no rate limit key named {', '.join(map(repr, names))}.{_question(near)} Declare it first: "
            'RateLimitKey.objects.declare("name", concurrency=5), or DISPATCHER["keys"] in the settings; '
            "a key may be declared without any limit.",
        )


class KeyNotFound(DispatcherError, LookupError):
    """A control verb names a key that does not exist."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        """Keep the name as a fact; known: those that exist, of which the closest are suggested."""
        self.name = name
        near = _near([name], known)
        super().__init__(
            f"no rate limit key named {name!r}.{_question(near)} See manage.py rate_limit_status for those there are."
        )
        self.args = name, near


def _near(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the known names that are like these; a template by its own name."""
    templates = list(known)
    found = (get_close_matches(name, templates, n=2) or _templates(name, templates) for name in names)
    return list(dict.fromkeys(template for near in found for template in near))


def _question(near: Iterable[str]) -> str:
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _templates(name: str, known: Iterable[str]) -> list[str]:
    """Return the templates whose fixed part is like the beginning of a name."""
    parts = {each.removesuffix("*"): each for each in known if each.endswith("*")}
    return [parts[part] for part in parts if get_close_matches(name[: len(part) + 1], [part], cutoff=0.8)]


class CallNotEnded(DispatcherError):
    """A call that has not ended can't be deleted: its worker, its slots and its room would be forgotten; cancel it."""

    def __init__(self, call: str, state: str) -> None:
        """Keep the call's id and its state as facts."""
        self.call, self.state = call, state
        super().__init__(
            f"call {call} is {state}: only calls that have ended can be deleted. End it first with "
            f"dispatcher.api.cancel([{call!r}]), or the action Cancel of the admin; one that runs has to end."
        )


class UnknownMethod(DispatcherError, LookupError):
    """A call's `call_data` names a method that no handler is registered for."""

    def __init__(self, method: str, known: list[str]) -> None:
        """Keep the method, list those that exist."""
        self.method = method
        super().__init__(
            f"call_data.method: no handler for {method!r}; known are {', '.join(known)}. "
            "Register yours with dispatcher.handlers.register in a module that the worker imports."
        )


class ConfigurationError(DispatcherError):
    """The DISPATCHER setting holds something unknown or out of range."""


class DatabaseNotReady(DispatcherError):
    """The database can't do what the dispatcher needs until somebody has repaired it; nothing was changed.

    It is not PostgreSQL, lacks the tables or functions of this code, denies them to its role, takes no writes, or its
    pool has no connection to spare: the first line says which, the second what to do. Raised as an error of django.db,
    too: what was asked for can be tried again after that.
    """

    def __init__(self, problem: str, remedy: str, *, database: str = "") -> None:
        """Keep the alias of the database as a fact."""
        self.database = database
        super().__init__(problem, remedy)


class RowLocked(DispatcherError, TimeoutError):
    """Another transaction has kept what a person changes locked for longer than people wait; nothing was changed."""

    def __init__(self, what: str, waited: float) -> None:
        """Say what is locked, and for how many seconds that was waited for, at the most."""
        super().__init__(
            f"Another transaction has locked {what}; nothing was changed, after a wait of {waited:g} s "
            "at the most. Try again when it has ended: pg_stat_activity shows it."
        )
        self.args = what, waited


class RateLimited(DispatcherError):
    """Raise this in a task when the provider asks to stop: the call waits again, and no attempt is spent.

    Every key of the call, or the one named by `key`, lets nothing start for `retry_after` seconds, one at the least.
    """

    def __init__(self, retry_after: float | timedelta, *, key: str | None = None, reason: str = "") -> None:
        """Take the wait in seconds, or as a timedelta; it must not be negative."""
        self.retry_after = retry_after if isinstance(retry_after, timedelta) else timedelta(seconds=retry_after)
        if self.retry_after < timedelta(0):
            message = "retry_after must not be negative"
            raise ValueError(message)
        self.key = key
        super().__init__(reason or f"rate limited for {self.retry_after.total_seconds():g} s")


class WorkerLost(DispatcherError):
    """An attempt ended without an outcome: its worker died, shut down, or sent no heartbeat within its lease."""


class TaskExited(WorkerLost):
    """A task ended with `SystemExit`, as by `sys.exit()`, and its process goes on."""


class AnswerTooLarge(DispatcherError):
    """The answer to an HTTP call is larger, decompressed, than the setting `max_payload_bytes`: it is not kept.

    Ask for less, or raise the setting.
    """


class TargetRefused(DispatcherError):
    """An HTTP call or a webhook would reach an address that is not public: nothing was sent.

    Correct the URL, or allow its host with the setting `http_allowed_hosts`.
    """


class TicketReplaced(DispatcherError):
    """An attempt asked whether it still holds its call, and it does not: its lease ran out, and another may run it."""

    def __init__(self, call: str) -> None:
        """Keep the call's id as a fact."""
        self.call = call
        super().__init__(f"call {call} was given to another attempt; this one must stop")
