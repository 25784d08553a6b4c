-- find_due: what a tick has to do: which of the steps that depend on time, or that complete what others left, find
-- something; and how long until something falls due (`wait`): a note, a call's time comes or it expires, the lease of a
-- fetched call runs out. Each is answered by the first entry of an index, so a tick with nothing to do costs the same
-- in a system of any size.
-- Relies on the indexes slot_pulled, call_due, call_expires, call_unpublished, call_unplaced, call_oversized, note_at,
-- lanesite_place and key_override_ends. Ordered as these are: min() or EXISTS would be planned as a read of the whole
-- table where statistics call it empty.
WITH {{clock}}, next AS MATERIALIZED (
    SELECT (SELECT slot.pulled_until FROM dispatcher_slot AS slot
             WHERE slot.pulled_until IS NOT NULL ORDER BY slot.pulled_until LIMIT 1) AS pulled_until,
           (SELECT call.scheduled_at FROM dispatcher_callqueue AS call
             WHERE call.state IN ('scheduled', 'retryable') AND call.scheduled_at IS NOT NULL
             ORDER BY call.scheduled_at LIMIT 1) AS scheduled_at,
           (SELECT call.expires_at FROM dispatcher_callqueue AS call
             WHERE call.state IN ('scheduled', 'pending', 'available', 'retryable') AND call.expires_at IS NOT NULL
             ORDER BY call.expires_at LIMIT 1) AS expires_at,
           (SELECT note.at FROM dispatcher_note AS note ORDER BY note.at LIMIT 1) AS noted_at,
           (SELECT lease_check.checked_at FROM dispatcher_leasecheck AS lease_check) AS checked_at
)
SELECT COALESCE(next.pulled_until <= clock.now, false) AS has_overdue,
       COALESCE(next.scheduled_at <= clock.now, false) AS has_due_calls,
       COALESCE(next.expires_at <= clock.now, false) AS has_expired,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.state = 'dispatched' AND call.published_at IS NULL
           AND call.dispatched_at < clock.now - %(publish_after)s::interval
         ORDER BY call.dispatched_at LIMIT 1) IS NOT NULL AS has_unpublished,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE {{is_unplaced(call)}} ORDER BY call.position LIMIT 1) IS NOT NULL AS has_unplaced,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.oversized_key_id IS NOT NULL ORDER BY call.oversized_key_id LIMIT 1) IS NOT NULL AS has_oversized,
       COALESCE(next.noted_at <= clock.now, false) AS has_notes,
       (SELECT site.lane_id FROM dispatcher_lanesite AS site
         WHERE site.place = 0 ORDER BY site.queue LIMIT 1) IS NOT NULL AS has_ready,
       (SELECT key.id FROM dispatcher_ratelimitkey AS key
         WHERE key.override_until <= clock.now ORDER BY key.override_until LIMIT 1) IS NOT NULL AS has_overrides,
       -- A lease that was over at the latest look could not be judged then (check_leases).
       LEAST(next.noted_at, next.scheduled_at, next.expires_at,
             CASE WHEN next.pulled_until <= next.checked_at
                  THEN GREATEST(next.pulled_until, next.checked_at + interval '1 second')
                  ELSE next.pulled_until END) - clock.now AS wait
  FROM clock
 CROSS JOIN next
