"""Run the whole stack until Ctrl-C: servers, witness, worker, dispenser, beat and admin (`make run`).

The web server listens on the port that PORT names, 8000 if it names none.
"""

import os
import secrets
import sys
import time

import django
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections

from project.processes import ChildFailed, Stack
from project.run_dirs import RunDirBusy
from project.services import Services, embedded
from project.witness.child import start_witness

LOGIN = "demo"
QUEUES = ("celery", "reports")
WATCH = 1.0
ORDERS = 100


def main() -> None:
    """Bring the stack up, say where it is, and stop all of it on Ctrl-C or SIGTERM."""
    port = int(os.environ.get("PORT", "8000"))
    try:
        with embedded(fresh=False, name="run") as services, Stack(services.run_dir) as stack:
            password = migrate(services)
            start_witness(stack)
            stack.start_worker(queues=QUEUES)
            stack.start_dispenser()
            stack.start_beat()
            stack.start_web(port)
            stack.wait_ready()
            place_orders()
            print(greeting(services, port, password), flush=True)
            while True:
                time.sleep(WATCH)
                stack.ensure_running()
    except KeyboardInterrupt:
        print("\nStopped.")
    except (ChildFailed, RunDirBusy) as error:
        sys.exit(str(error))


def migrate(services: Services) -> str | None:
    """Bring the database up to date, and make a login for the admin; return its password.

    An account of that name in a database that is not ours is left as it is: None.
    """
    django.setup()
    call_command("migrate", verbosity=0)
    user, is_new = get_user_model().objects.get_or_create(
        username=LOGIN, defaults={"is_staff": True, "is_superuser": True}
    )
    password = secrets.token_urlsafe(12) if is_new or services.owns_database else None
    if password is not None:
        user.set_password(password)
        user.save()
    connections.close_all()
    return password


def place_orders() -> None:
    """Leave something to look at: calls that wait for their limits, that run, and that are due in an hour."""
    # Models can't be imported before Django is set up.
    from project.shop.views import place  # noqa: PLC0415

    place(ORDERS)
    connections.close_all()


def greeting(services: Services, port: int, password: str | None) -> str:
    """Return what is said once all runs."""
    return "\n".join(
        [
            f"Admin      http://127.0.0.1:{port}/admin/",
            f"Shop       http://127.0.0.1:{port}/shop/ (places orders, after the login)",
            f"Login      {LOGIN} / {password or '(its password is not changed)'}",
            f"Database   {services.database_url}",
            f"Broker     {services.broker_url}",
            f"Logs       {services.run_dir / 'logs'}",
            "Ctrl-C stops it all.",
        ]
    )


if __name__ == "__main__":
    main()
