"""The project's own view that sends: reachable for staff, in the transaction of its request."""

from collections import Counter
from typing import Any

import pytest
from django.test import Client

from dispatcher.models import CallQueue
from project.shop import views

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def test_who_is_not_logged_in_is_led_to_the_login(client: Client) -> None:
    assert client.post("/shop/", {"count": "2"}).headers["Location"].startswith("/admin/login/")
    assert not CallQueue.objects.exists()


def test_the_orders_of_a_post_are_sent_and_shown(admin_client: Client) -> None:
    assert admin_client.post("/shop/", {"count": "2"}).headers["Location"] == "/shop/"
    sent = Counter(CallQueue.objects.values_list("task", flat=True))
    assert sent["project.shop.tasks.charge"] == 2
    assert sent["dispatcher.call"] == 2
    assert sent["project.shop.tasks.report"] == 1
    page = admin_client.get("/shop/").content.decode()
    assert "api.payments" in page
    assert "project.shop.tasks.charge" in page


@pytest.mark.parametrize("count", ["", "0", "501", "many"])
def test_a_count_out_of_range_is_refused_by_its_name(admin_client: Client, count: str) -> None:
    answer = admin_client.post("/shop/", {"count": count})
    assert (answer.status_code, answer.content.decode()[:6]) == (400, "count:")


def test_a_request_that_fails_sends_nothing(admin_client: Client, monkeypatch: Any) -> None:
    place = views.place

    def fail(count: int) -> None:
        place(count)
        raise RuntimeError

    monkeypatch.setattr(views, "place", fail)
    with pytest.raises(RuntimeError):
        admin_client.post("/shop/", {"count": "2"})
    assert not CallQueue.objects.exists()
