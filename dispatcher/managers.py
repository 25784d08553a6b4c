"""The managers: the public Python API that people see first. Thin: `dispatcher.api` does the work.

Models import this module, and `dispatcher.api` imports models; so a method imports it when it is called.
"""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from django.db import models

from dispatcher.conf import conf
from dispatcher.errors import CallInvalid, CallNotEnded, PolicyInvalid
from dispatcher.request import Call
from dispatcher.states import IN_FLIGHT, TERMINAL, Reason, State
from dispatcher.validate import only_named

if TYPE_CHECKING:
    from dispatcher.models import CallQueue, RateLimitKey

P = ParamSpec("P")
M = TypeVar("M", bound=models.Model)


class Manager(models.Manager[M]):
    """Rows in the database that DISPATCHER["database"] names, whatever routers a project has."""

    def get_queryset(self) -> models.QuerySet[M]:
        """Return the rows of that database; `using` chooses another one."""
        rows = super().get_queryset()
        return rows if self._db else rows.using(conf().database)


class CallQuerySet(models.QuerySet["CallQueue"]):
    """Filters by where a call stands."""

    def waiting(self) -> "CallQuerySet":
        """Filter calls whose limits have had no room for them yet."""
        return self.filter(state=State.AVAILABLE)

    def in_flight(self) -> "CallQuerySet":
        """Filter calls that hold slots: dispatched or running."""
        return self.filter(state__in=IN_FLIGHT)

    def ended(self) -> "CallQuerySet":
        """Filter calls in a terminal state."""
        return self.filter(state__in=TERMINAL)

    def poison(self) -> "CallQuerySet":
        """Filter calls that were discarded because they kept killing their workers."""
        return self.filter(reason=Reason.POISON)

    def bulk_create(self, objs: "Iterable[CallQueue]", *args: Any, **options: Any) -> "list[CallQueue]":
        """Write rows of calls as they are. Raises CallInvalid for a call that was made by hand."""
        calls = list(objs)
        for call in calls:
            check_is_sent(call)
        return super().bulk_create(calls, *args, **options)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete calls that have ended. Raises CallNotEnded if one of them has not; then nothing is deleted."""
        calls = self.order_by()
        unended = calls.exclude(state__in=TERMINAL).values_list("pk", "state").first()
        if unended is not None:
            raise CallNotEnded(str(unended[0]), unended[1])
        # The statement that deletes checks the state again: a call may have been retried since.
        return super(CallQuerySet, calls.filter(state__in=TERMINAL)).delete()

    # As Django's own `delete`: templates may not call it, and a manager does not have it.
    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


def check_is_sent(call: "CallQueue") -> None:
    """Refuse to write a call that was made by hand: no trip would find it. Raises CallInvalid."""
    if call._state.adding and call.lane_id is None and call.placement is None:  # noqa: SLF001 -- Django's own name
        raise CallInvalid("id", "a call is made by CallQueue.objects.send(task, args=[...], keys=[...]).")


def check_has_ended(call: "models.QuerySet[CallQueue]") -> None:
    """Lock one call for the rest of the transaction. Raises CallNotEnded if it has not ended."""
    row = call.select_for_update().values_list("pk", "state").first()
    if row is not None and row[1] not in TERMINAL:
        raise CallNotEnded(str(row[0]), row[1])


def _send(make: Callable[P, Call]) -> Callable[Concatenate["CallQueueManager", P], "CallQueue"]:
    """Return the method that takes the fields of a call as `make` does, with its signature."""

    def send(manager: "CallQueueManager", /, *task: P.args, **fields: P.kwargs) -> "CallQueue":  # noqa: ARG001 -- a method
        """Write one call in the caller's transaction, and return it saved; after the commit it goes as limits allow.

        It takes the fields of a `Call`, by their names.
        task: a Celery task, its name or a signature; leave it out if `call_data` ({"method", "params"}) is given.
        keys: the names of the keys that it spends, or {name: cost}; every one must exist (see UnknownKey).
        rate_limit: an Open Job Spec policy {"key", "concurrency", "rate", "throttle", "on_limit"}; makes a new key.
        queue: the Celery queue; by default the task's own route. priority: -100 to 100, higher first.
        scheduled_at, expires_at: times with a zone; not before, and not after.
        on_limit: "wait" (default), "reschedule" or "drop". retry: see retry.Retry.
        headers: headers of the message, as of `apply_async`. outside: commit it at once, outside the transaction.
        Raises CallInvalid or PolicyInvalid naming the field; then nothing was written.
        """
        from dispatcher import api  # noqa: PLC0415 -- it imports the models, which import this module

        return api.send(make(*task, **fields))

    send.__signature__ = signature(Call.__init__)  # type: ignore[attr-defined]
    return send


_Calls = Manager.from_queryset(CallQuerySet)


class CallQueueManager(_Calls["CallQueue"]):
    """CallQueue.objects: send calls, and the filters of CallQuerySet."""

    send = _send(Call)

    def send_many(self, calls: Iterable[Call]) -> "list[CallQueue]":
        """Write many calls at once, all or none, and return them saved in the order given.

        Errors as `send`; their `.index` is the place of the call that is wrong.
        """
        from dispatcher import api  # noqa: PLC0415 -- as in `send`

        if not isinstance(calls, Iterable):
            raise CallInvalid("calls", f"{type(calls).__name__} must be a list, such as [Call(task, args=[...])].")
        return api.send_many(list(calls))


class RateLimitKeyManager(Manager["RateLimitKey"]):
    """RateLimitKey.objects: declare keys."""

    @only_named(PolicyInvalid, {})
    def declare(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        per_worker: int | None = None,
        rate: object = None,
        throttle: object = None,
        fair_by: str | None = None,
        weight: int | None = None,
        observe: bool = False,
    ) -> "RateLimitKey":
        """Make a key if it does not exist, and return it; the policy of one that does is left as it is.

        rate, throttle: (limit, period), {"limit", "period"} or Celery's "100/m"; the period as ISO 8601, seconds or a
        timedelta. fair_by: the template of the keys by which waiting calls take turns; weight: how many turns those of
        this key take there. observe: its limits stop nothing, and what they would have delayed is counted.
        Raises PolicyInvalid or CallInvalid naming the field.
        """
        from dispatcher import api  # noqa: PLC0415 -- as in `send`

        limits = {"concurrency": concurrency, "per_worker": per_worker, "rate": rate, "throttle": throttle}
        return api.declare(name, {**limits, "fair_by": fair_by, "weight": weight, "observe": observe})
