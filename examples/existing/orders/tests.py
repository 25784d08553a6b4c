"""The project's own tests, with tasks that run at once."""

from bookshop.celery import app
from django.test import TestCase

from orders.tasks import charge, price, receipt, sign


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
