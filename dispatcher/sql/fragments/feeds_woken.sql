-- feeds_woken(chosen): the CTEs `woken`, and `notified` with a row for each worker that is notified.
woken AS (
    UPDATE dispatcher_feed AS feed
       SET idle_at = NULL
     WHERE feed.worker_id IN (SELECT {{chosen}}.worker_id FROM {{chosen}})
    RETURNING feed.worker_id
), notified AS MATERIALIZED (
    SELECT woken.worker_id, pg_notify('dispatcher_' || replace(woken.worker_id::text, '-', ''), '')::text AS sent
      FROM woken
)
