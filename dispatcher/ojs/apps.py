"""The app: what it registers at the start."""

from importlib.util import find_spec
from pathlib import Path

from django.apps import AppConfig

from dispatcher.errors import ConfigurationError


class OjsConfig(AppConfig):
    """The Open Job Spec over HTTP; the dispatcher runs without it."""

    name = "dispatcher.ojs"
    label = "dispatcher_ojs"
    verbose_name = "Dispatcher: Open Job Spec"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register its statements, its part in the engine's steps, its checks and its tasks.

        Raises ConfigurationError without the libraries of the extra `http`.
        """
        if missing := [name for name in ("ninja", "requests") if find_spec(name) is None]:
            extra = 'which the extra http installs: pip install "django-callqueue[http]".'
            message = f"dispatcher.ojs needs {' and '.join(missing)}, {extra}"
            raise ConfigurationError(message)
        # Models must be loaded first; auth has the app's check.
        from dispatcher import extension  # noqa: PLC0415
        from dispatcher.ojs import auth, tasks  # noqa: F401, PLC0415
        from dispatcher.ojs.extension import OpenJobSpec  # noqa: PLC0415
        from dispatcher.sql import statements  # noqa: PLC0415

        statements.add(Path(__file__).with_name("sql"))
        extension.register(OpenJobSpec())
