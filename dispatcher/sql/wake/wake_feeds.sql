-- wake_feeds: notify one idle worker of each of these queues; none where all are busy, so that no commit notifies in
-- vain. For a transaction of its own, after the caller's commit: a commit that notifies holds a lock of the whole
-- database. The commit is not waited for, see wake_for_call.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS durability
), chosen AS MATERIALIZED (
    SELECT idle.worker_id
      FROM clock
     CROSS JOIN (SELECT DISTINCT name FROM unnest(%(queues)s::text[]) AS queue (name)) AS queue
     CROSS JOIN LATERAL (
           {{idle_feed_of(queue.name, NULL::bigint[], clock.now)}}) AS idle
), {{feeds_woken(chosen)}}
SELECT worker_id, sent FROM notified
