"""A project that runs on psycopg2 gets the package: Django goes over to psycopg 3, and the project goes on.

`make release` makes its environment, since psycopg2 comes from the index.
"""

import os
import shlex
import subprocess
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from project.services import Services
from tests.flows.test_first_steps import UNSET, addresses

PYTHON, PACKAGE = os.environ.get("RELEASE_PSYCOPG2", ""), os.environ.get("RELEASE_PACKAGE", "")
"""An environment with Django and psycopg2, and the package with its extras, which it has not."""

pytestmark = [pytest.mark.broker, pytest.mark.skipif(not PYTHON, reason="make release runs it")]

MODELS = """
from django.contrib.postgres.fields import ArrayField
from django.db import models


class Item(models.Model):
    name = models.CharField(max_length=20)
    tags = ArrayField(models.TextField())
    facts = models.JSONField()
    made_at = models.DateTimeField(auto_now_add=True)
"""
TESTS = """
from django.db import IntegrityError, connection, transaction
from django.test import TestCase

from stock.models import Item


class Tests(TestCase):
    def test_items(self):
        item = Item.objects.create(name="a", tags=["x", "y"], facts={"n": [1, None]})
        self.assertEqual(Item.objects.filter(tags__contains=["x"], facts__n=[1, None]).get(), item)
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, made_at FROM stock_item WHERE name = ANY (%s)", [["a", "b"]])
            self.assertEqual(cursor.fetchall(), [("a", item.made_at)])
        with self.assertRaises(IntegrityError), transaction.atomic():
            Item.objects.create(id=item.id, name="b", tags=[], facts={})
"""
CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop", broker="memory://")
"""
BEFORE = "from stock.models import Item; Item.objects.create(name='before', tags=['kept'], facts={'n': 1})"
DRIVER = "from django.db import connection; print(connection.Database.__name__)"
AFTER = """
from django.db import transaction
from dispatcher.models import CallQueue
from stock.models import Item

with transaction.atomic():
    Item.objects.create(name="after", tags=[], facts={})
    CallQueue.objects.send("stock.tasks.count")
print(*Item.objects.order_by("id").values_list("name", "tags"), CallQueue.objects.get().state)
"""


class Site:
    """The project, in an environment that has psycopg2 at first."""

    def __init__(self, home: Path, services: Services) -> None:
        self.home = home
        self.run("-m django startproject shop .")
        self.run("manage.py startapp stock")
        (home / "stock" / "models.py").write_text(MODELS)
        (home / "stock" / "tests.py").write_text(TESTS)
        database = f"old_{uuid4().hex[:12]}"
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        url = urlsplit(services.database_url)._replace(path=f"/{database}").geturl()
        engine = 'DATABASES["default"] = {"ENGINE": "django.db.backends.postgresql"}'
        self.add_settings(engine, addresses(url, "memory://"), 'INSTALLED_APPS += ["stock", "django.contrib.postgres"]')
        self.run("manage.py makemigrations stock")

    def run(self, line: str) -> str:
        """Run Python with these words, and return what it prints."""
        command = ["env", *UNSET, PYTHON, *shlex.split(line)]
        done = subprocess.run(command, cwd=self.home, stdout=PIPE, stderr=STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def shell(self, code: str) -> str:
        """Run code in the project's shell, and return what it prints."""
        return self.run(f"manage.py shell -v 0 -c {shlex.quote(code)}")

    def add_settings(self, *lines: str) -> None:
        """Write lines at the end of the settings."""
        with (self.home / "shop" / "settings.py").open("a") as settings:
            settings.write("\n".join(["", *lines, ""]))


def test_a_project_on_psycopg2_is_warned_and_goes_on(services: Services, tmp_path: Path) -> None:
    site = Site(tmp_path, services)
    site.run("manage.py migrate -v 0")
    site.run("manage.py test")
    site.shell(BEFORE)
    assert site.shell(DRIVER) == "psycopg2"

    site.run(f"-m pip --disable-pip-version-check --quiet install {shlex.quote(PACKAGE)}")
    assert site.shell(DRIVER) == "psycopg"
    (tmp_path / "shop" / "celery.py").write_text(CELERY)
    (tmp_path / "shop" / "__init__.py").write_text("from shop.celery import app as celery_app\n")
    site.add_settings('INSTALLED_APPS += ["dispatcher"]')
    warned = site.run("manage.py check")
    assert "dispatcher.W023" in warned
    assert "psycopg2" in warned
    site.run("manage.py migrate -v 0")
    site.run("manage.py test")
    assert site.shell(AFTER).splitlines()[-1] == "('before', ['kept']) ('after', []) available"

    site.run("-m pip --disable-pip-version-check --quiet uninstall -y psycopg2-binary")
    assert "W023" not in site.run("manage.py check")
    site.run("manage.py test")
