"""The mark of an idle worker: it is written again before a look, so that one look a round is enough."""

from uuid import UUID

import pytest

from dispatcher.celery.feed_mark import IdleMark
from dispatcher.models import Feed

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = UUID(int=1)


def is_idle() -> bool:
    return Feed.objects.filter(worker_id=WORKER, idle_at__isnull=False).exists()


@pytest.fixture
def mark() -> IdleMark:
    return IdleMark(WORKER)


def test_a_mark_that_is_gone_is_written_again_before_a_look_and_says_so_after_it(mark: IdleMark) -> None:
    mark.write(["mail"], is_idle=True, keep_s=0)
    Feed.objects.all().delete()
    assert not mark.says(["mail"], is_idle=True)
    mark.renew(keep_s=60)
    assert is_idle()
    assert mark.says(["mail"], is_idle=True)
    Feed.objects.all().delete()
    mark.renew(keep_s=60)
    assert not is_idle(), "not before its time"


def test_a_worker_that_is_busy_or_was_woken_is_not_marked_by_a_look(mark: IdleMark) -> None:
    mark.renew(keep_s=60)
    mark.write(["mail"], is_idle=False, keep_s=0)
    mark.renew(keep_s=60)
    assert not is_idle()
    mark.write(["mail"], is_idle=True, keep_s=0)
    Feed.objects.update(idle_at=None)
    mark.note_woken()
    mark.renew(keep_s=60)
    assert not is_idle()
