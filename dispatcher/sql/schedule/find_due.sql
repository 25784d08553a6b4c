-- find_due: what a tick has to do: which of the steps that depend on time, or that complete what others left, find
-- something. Each is answered by the first entry of an index, so a tick with nothing to do costs the same in a system
-- of any size.
-- Relies on the indexes slot_pulled, call_due, call_expires, call_unpublished, call_unplaced, call_oversized, note_at,
-- lanesite_place and key_override_ends. Ordered as these are: min() or EXISTS would be planned as a read of the whole
-- table where statistics call it empty.
WITH {{clock}}
SELECT (SELECT slot.id FROM dispatcher_slot AS slot
         WHERE slot.pulled_until <= clock.now ORDER BY slot.pulled_until LIMIT 1) IS NOT NULL AS has_overdue,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.state IN ('scheduled', 'retryable') AND call.scheduled_at <= clock.now
         ORDER BY call.scheduled_at LIMIT 1) IS NOT NULL AS has_due_calls,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.state IN ('scheduled', 'pending', 'available', 'retryable') AND call.expires_at <= clock.now
         ORDER BY call.expires_at LIMIT 1) IS NOT NULL AS has_expired,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.state = 'dispatched' AND call.published_at IS NULL
           AND call.dispatched_at < clock.now - %(publish_after)s::interval
         ORDER BY call.dispatched_at LIMIT 1) IS NOT NULL AS has_unpublished,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE {{is_unplaced(call)}} ORDER BY call.position LIMIT 1) IS NOT NULL AS has_unplaced,
       (SELECT call.id FROM dispatcher_callqueue AS call
         WHERE call.oversized_key_id IS NOT NULL ORDER BY call.oversized_key_id LIMIT 1) IS NOT NULL AS has_oversized,
       (SELECT note.at FROM dispatcher_note AS note
         WHERE note.at <= clock.now ORDER BY note.at LIMIT 1) IS NOT NULL AS has_notes,
       (SELECT site.lane_id FROM dispatcher_lanesite AS site
         WHERE site.place = 0 ORDER BY site.queue LIMIT 1) IS NOT NULL AS has_ready,
       (SELECT key.id FROM dispatcher_ratelimitkey AS key
         WHERE key.override_until <= clock.now ORDER BY key.override_until LIMIT 1) IS NOT NULL AS has_overrides
  FROM clock
