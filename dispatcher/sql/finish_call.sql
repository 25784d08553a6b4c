-- finish_call: record how an attempt ended, if this ticket still owns the call, and give its slots back.
-- No row back means the ticket was replaced: the outcome is dropped. `dispatched` is accepted beside `active`: the
-- commit of the claim may be lost in a crash of the database; its start is counted now, as claim_call does.
WITH ended AS (
    UPDATE dispatcher_callqueue AS call
       SET state = %(state)s::text, reason = %(reason)s::text, ticket = NULL, result = %(result)s::jsonb,
           crashes = COALESCE(%(crashes)s::smallint, call.crashes),
           scheduled_at = COALESCE(COALESCE(%(now)s::timestamptz, clock_timestamp()) + %(retry_in)s::interval, call.scheduled_at),
           finished_at = CASE WHEN %(state)s::text = ANY (%(terminal)s::text[]) THEN COALESCE(%(now)s::timestamptz, clock_timestamp()) END,
           started_at = COALESCE(call.started_at, call.dispatched_at),
           attempt = call.attempt + CASE WHEN call.state = 'dispatched' THEN 1 ELSE 0 END,
           error = failure.error, errors = CASE WHEN failure.error IS NULL THEN call.errors ELSE call.errors || failure.error END
      FROM (SELECT %(error)s::jsonb || jsonb_build_object('occurred_at', COALESCE(%(now)s::timestamptz, clock_timestamp()))
           ) AS failure (error)
     WHERE call.id = %(call)s::uuid AND call.ticket = %(ticket)s::uuid AND call.state IN ('dispatched', 'active')
    RETURNING call.id, call.lane_id
), freed AS (
    DELETE FROM dispatcher_slot AS slot
     USING ended
     WHERE slot.call_id = ended.id
    RETURNING slot.key_id, slot.cost, slot.started_at
), uncounted AS MATERIALIZED (
    SELECT key.id, freed.cost, COALESCE(key.rate_period, key.override_rate_period) AS window_period,
           GREATEST(key.rate_period, key.override_rate_period, %(margin)s::interval) AS longest,
           COALESCE(%(now)s::timestamptz, clock_timestamp()) AS now
      FROM freed
      JOIN dispatcher_ratelimitkey AS key ON key.id = freed.key_id
     WHERE freed.started_at IS NULL
), counted AS (
    INSERT INTO dispatcher_window AS bucket (key_id, place, cost, last_start_at)
    SELECT id,
           trunc(mod(EXTRACT(EPOCH FROM now), EXTRACT(EPOCH FROM 2.5 * longest))
                 / EXTRACT(EPOCH FROM window_period / %(buckets)s::int)),
           cost, now
      FROM uncounted
     WHERE window_period IS NOT NULL
     ORDER BY id
        ON CONFLICT (key_id, place) DO UPDATE
       SET last_start_at = GREATEST(bucket.last_start_at, excluded.last_start_at),
           cost = excluded.cost + CASE WHEN excluded.last_start_at - bucket.last_start_at < (
                      SELECT 2 * longest FROM uncounted WHERE id = bucket.key_id) THEN bucket.cost ELSE 0 END
), paced AS MATERIALIZED (
    SELECT key.id, freed.cost
      FROM freed
      JOIN dispatcher_ratelimitkey AS key ON key.id = freed.key_id
     WHERE freed.started_at IS NULL AND key.throttle_period IS NOT NULL
     ORDER BY key.id
       FOR NO KEY UPDATE OF key
), spaced AS (
    UPDATE dispatcher_ratelimitkey AS key
       SET next_start_at = GREATEST(key.next_start_at, COALESCE(%(now)s::timestamptz, clock_timestamp())
                                    + LEAST(EXTRACT(EPOCH FROM key.throttle_period) * paced.cost / key.throttle_limit, 1e9)
                                      * interval '1 second')
      FROM paced
     WHERE key.id = paced.id
)
SELECT ended.lane_id, ARRAY(SELECT key_id FROM freed WHERE key_id IS NOT NULL ORDER BY key_id) AS keys
  FROM ended
