-- unpublished_calls: calls that were dispatched some time ago and not published; none of the queues in `resting`,
-- from which publishing backs off.
-- Their leases are renewed, unless they are longer: they waited for the broker, not for a worker. A slot that another
-- transaction has locked keeps its lease.
-- Relies on the index call_unpublished, which holds what is published and unclaimed as well: with `published_at` in it,
-- the note of a publication would cost an entry in every index.
-- After a crash of the database the note that a call was published, or even claimed, may be missing: the
-- worker that holds it sends a heartbeat, for which `after_restart` gives time.
WITH forgotten AS MATERIALIZED (
    SELECT {{message_columns(call)}}, call.position
      FROM dispatcher_callqueue AS call
     WHERE call.state = 'dispatched' AND call.published_at IS NULL
       AND call.dispatched_at < (SELECT {{now}} - %(after)s::interval)
       AND call.queue <> ALL(%(resting)s::text[])
       AND (call.dispatched_at > (SELECT pg_postmaster_start_time())
            OR (SELECT clock_timestamp() > pg_postmaster_start_time() + %(after_restart)s::interval))
     ORDER BY call.dispatched_at, call.id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE SKIP LOCKED
), held AS MATERIALIZED (
    SELECT slot.id
      FROM dispatcher_slot AS slot
     WHERE slot.call_id = ANY (ARRAY(SELECT forgotten.id FROM forgotten))
       FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = GREATEST(slot.lease_until, {{now}} + %(lease)s::interval)
      FROM held
     WHERE slot.id = held.id
)
SELECT id, ticket, task, args, kwargs, call_data, headers, options, queue, attempt, chosen_keys, scheduled_at,
       expires_at
  FROM forgotten
 ORDER BY position, id
