"""What gives a worker its loops: its bootsteps, and what follows in each process of the pool."""

from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals
from celery.concurrency import get_implementation
from celery.worker import WorkController

from dispatcher.celery import heartbeat
from dispatcher.messages import broker
from dispatcher.worker import control
from dispatcher.worker.keeper import Keeper, keeper_of
from dispatcher.worker.loop import Options
from dispatcher.worker.shared import Shared

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.fence


class LoopMemory(bootsteps.StartStopStep):
    """Makes the memory that the main process shares with its loops, before the pool forks."""

    # So that a cold shutdown comes here before it ends the pool.
    requires = ("celery.worker.components:Pool", heartbeat.Presence)

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Make it."""
        super().__init__(worker, **kwargs)
        Shared.current = Shared()
        if is_in_memory(worker.app):
            broker.keep_to_itself()

    def terminate(self, worker: WorkController) -> None:
        """Let no loop end its call first."""
        if (keeper := keeper_of(worker)) is not None:
            keeper.condemn()


class Loops(bootsteps.StartStopStep):
    """Runs the loops as long as the worker's consumer runs."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: "Consumer") -> None:
        """Keep loops in the consumer's pool."""
        controller, shared, worker = consumer.controller, Shared.current, heartbeat.Identity.worker
        if shared is None or worker is None:
            return
        if (keeper := keeper_of(controller)) is not None:
            keeper.attach(consumer)
            return
        options = Options(
            worker=worker,
            hostname=controller.hostname,
            tasks=list(consumer.strategies),
            is_forked=controller.pool_cls.__module__.endswith("prefork"),
            soft=controller.soft_time_limit,
            hard=controller.time_limit,
            most_calls=controller.max_tasks_per_child,
            most_kb=controller.max_memory_per_child,
        )
        keeper = controller.dispatcher_keeper = Keeper(consumer, shared, options)
        # Without an event loop, as with memory://, Celery stops this step seconds after the signal.
        signals.worker_shutting_down.connect(keeper.close, sender=controller.hostname, weak=False)
        signals.task_received.connect(keeper.wake, weak=False)
        _let_shut_down(consumer, keeper)


def _let_shut_down(consumer: "Consumer", keeper: Keeper) -> None:
    """Have the calls of loops waited for, or ended, where a cold shutdown does so with the broker's tasks."""
    controller = consumer.controller
    wait_for_tasks, cancel_tasks = controller.wait_for_soft_shutdown, consumer.cancel_active_requests

    def wait_for_soft_shutdown() -> None:
        until = monotonic() + controller.app.conf.worker_soft_shutdown_timeout
        keeper.close()
        wait_for_tasks()
        keeper.wait(until)

    def cancel_active_requests() -> None:
        keeper.condemn()
        cancel_tasks()

    controller.wait_for_soft_shutdown, consumer.cancel_active_requests = wait_for_soft_shutdown, cancel_active_requests


def is_in_memory(app: Celery) -> bool:
    """Return whether the transport is in the process's own memory."""
    with app.connection_for_write() as connection:
        return bool(connection.transport.driver_type == "memory")


@signals.worker_init.connect
def join_worker(sender: WorkController, **_: Any) -> None:
    """Give a worker that starts its loops.

    On memory:// Celery runs no event loop, and the processes of prefork share one pipe, under a lock: if one that waits
    for work is killed, none gets any more. With the event loop each has its own, as with Redis and RabbitMQ.
    """
    is_prefork = get_implementation(sender.pool_cls).__module__ == "celery.concurrency.prefork"
    if is_prefork and sender.app.connection_for_read().transport_cls == "memory":
        sender.use_eventloop = True
    sender.app.steps["worker"].add(LoopMemory)
    sender.app.steps["consumer"].add(Loops)
    control.listen()


@signals.worker_process_init.connect
def enter_process(**_: Any) -> None:
    """Let a process of the pool see the end of the main process."""
    if Shared.current is not None:
        Shared.current.enter_child()
