-- queue_delivery(queue): how the calls of a queue reach their workers.
COALESCE((SELECT stored.delivery FROM dispatcher_queue AS stored WHERE stored.name = {{queue}}), 'broker')
