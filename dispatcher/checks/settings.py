"""Checks of DISPATCHER: its names and ranges, the policies of keys, the retry policy, deliveries."""

from typing import Any

from django.conf import settings as django_settings
from django.core import checks

from dispatcher.checks.base import Found, without_http
from dispatcher.conf import Conf, out_of_range, read
from dispatcher.errors import ConfigurationError, PolicyInvalid
from dispatcher.lanes.mixture import check_declared
from dispatcher.limits.policy import Policy
from dispatcher.limits.retry import Retry
from dispatcher.states import Delivery
from dispatcher.validate import key_name


@checks.register("dispatcher")
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check DISPATCHER: E001 unknown or wrong type, E002 ranges, E003 keys, E004 retry, E017 http, W018 shares."""
    given = getattr(django_settings, "DISPATCHER", None)
    settings, problems = read({} if given is None else given)
    unread = [checks.Error(problem, id="dispatcher.E001") for problem in problems]
    wrong = [checks.Error(problem, id="dispatcher.E002") for problem in out_of_range(settings)]
    fetched = [queue for queue, delivery in settings.delivery.items() if delivery == Delivery.HTTP]
    return [*unread, *wrong, *_policies(settings), *without_http("DISPATCHER['delivery']", fetched)]


def _policies(settings: Conf) -> Found:
    fair_by: dict[str, str] = {}
    for name, policy in settings.keys.items():
        try:
            key_name(name.replace("*", "x") if isinstance(name, str) else name)
            field = f"DISPATCHER['keys'][{name!r}]"
            parsed = Policy.parse(policy, field)
            check_declared(name, parsed, field)
            if parsed.fair_by is not None:
                fair_by[name] = parsed.fair_by
        except (PolicyInvalid, ValueError) as error:
            yield checks.Error(str(error), id="dispatcher.E003")
        except ConfigurationError:
            # The delivery that the settings give is wrong itself, which E002 reports.
            continue
    try:
        Retry.parse(settings.retry, "DISPATCHER['retry']")
    except PolicyInvalid as error:
        yield checks.Error(str(error), id="dispatcher.E004")
    yield from _shares(settings, fair_by)


def _shares(settings: Conf, fair_by: dict[str, str]) -> Found:
    """Return a warning for each key whose calls may name keys of several templates that could be their share."""
    names = sorted(name for name in settings.keys if isinstance(name, str) and name.endswith("*"))
    for key, template in fair_by.items():
        shares = [name for name in names if name.startswith(template[:-1]) and name != key]
        if len(shares) > 1:
            message = f"DISPATCHER['keys'][{key!r}].fair_by: {template!r} has the keys of {', '.join(shares)}."
            hint = (
                "The share of a call that names keys of two of them is the first by name. Name the template by which "
                "calls are to take turns, or give the others another prefix."
            )
            yield checks.Warning(message, hint=hint, id="dispatcher.W018")
