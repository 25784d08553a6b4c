"""The bootstep that gives a worker its feed."""

from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals

from dispatcher.celery import fed, heartbeat
from dispatcher.celery.feed import Feed
from dispatcher.celery.feed_pool import Pool

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.unknown


def _pause(feed: Feed, **_: Any) -> None:
    feed.pause()


class FeedStep(bootsteps.StartStopStep):
    """Runs the feed as long as the worker's consumer runs."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: "Consumer", **kwargs: Any) -> None:
        """Take nothing yet."""
        super().__init__(consumer, **kwargs)

    def start(self, consumer: "Consumer") -> None:
        """Take calls for the consumer's pool."""
        number = heartbeat.worker_id()
        if number is None:
            return
        fed.carry_ends(consumer.app)
        controller = consumer.controller
        feed = getattr(controller, "dispatcher_feed", None)
        if feed is None:
            app = consumer.app
            queues = app.amqp.queues
            feed = controller.dispatcher_feed = Feed(
                number, controller.hostname, lambda: list(queues.consume_from), lambda: list(consumer.strategies)
            )
            controller.dispatcher_feed_pool = Pool(consumer)
            heartbeat.before_release(feed.finish)
            # Without an event loop, as with memory://, Celery stops this step seconds after the signal.
            signals.worker_shutting_down.connect(partial(_pause, feed), sender=controller.hostname, weak=False)
        pool = controller.dispatcher_feed_pool
        pool.add_reader()
        feed.resume(pool)

    def stop(self, consumer: "Consumer") -> None:
        """Take no more calls."""
        feed = getattr(consumer.controller, "dispatcher_feed", None)
        if feed is not None:
            feed.pause()

    terminate = stop
