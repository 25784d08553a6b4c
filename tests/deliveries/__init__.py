"""The verbs of `tests.drive` for each delivery that is installed."""

from django.apps import apps

from tests.deliveries.broker import Broker
from tests.deliveries.direct import Direct
from tests.drive import DRIVES

DRIVES |= {"direct": Direct, "broker": Broker}
if apps.is_installed("dispatcher.ojs"):
    from tests.deliveries.http import Http

    DRIVES["http"] = Http
