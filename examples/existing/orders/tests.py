"""The project's own tests, with tasks that run at once."""

from bookshop.celery import app
from celery import chord
from celery.contrib.testing.worker import start_worker
from django.test import TestCase, TransactionTestCase

from orders.tasks import charge, price, quote, receipt, sign, total


class TaskTest(TestCase):
    """Tasks run inline, in the test's transaction."""

    def setUp(self) -> None:
        """Run tasks at once."""
        app.conf.task_always_eager = True

    def tearDown(self) -> None:
        """Send them to workers again."""
        app.conf.task_always_eager = False

    def test_a_task_returns_its_result(self) -> None:
        """By each way to send it."""
        assert price.delay(7).get() == 70
        assert (price.s(7) | receipt.s()).delay().get() == "receipt: 70"
        assert sign.apply_async([7]).get() == "order 7 is signed by bookshop"

    def test_a_task_is_retried(self) -> None:
        """By autoretry_for."""
        assert charge.delay(7).get() == "order 7 is paid at try 3"


class WorkerTest(TransactionTestCase):
    """Tasks run in a worker in a thread of the test, a new one for each."""

    def setUp(self) -> None:
        """Start it."""
        self.enterContext(start_worker(app, perform_ping_check=False, shutdown_timeout=30))

    def test_a_task_runs_in_a_worker(self) -> None:
        """And is retried there."""
        assert charge.delay(7).get(timeout=30) == "order 7 is paid at try 3"

    def test_a_workflow_runs_in_another_worker(self) -> None:
        """Whatever the first one has left."""
        assert chord([quote.s(1), price.s(2)], total.s()).delay().get(timeout=30) == 30
