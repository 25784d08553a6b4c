-- wake_workers: after the commit of calls that wait now, notify one idle worker of each of their queues, and of each of
-- `queues`; return the queues, so that those that the broker delivers can be dispensed, and where tasks are eager
-- direct ones, too. `calls`: the first of each lane.
SELECT woken.queue, woken.is_published,
       CASE WHEN woken.worker_id IS NOT NULL
            THEN pg_notify('dispatcher_' || replace(woken.worker_id::text, '-', ''), '')::text END AS sent
  FROM {{@wake_workers}}(%(calls)s::uuid[], %(queues)s::text[], %(silence)s::interval, %(is_eager)s::bool) AS woken
