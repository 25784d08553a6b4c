-- note_lanes: note sleeping lanes: the next trip makes them ready.
INSERT INTO dispatcher_note (at, lane_id)
SELECT clock_timestamp(), lane.id FROM unnest(%(lanes)s::bigint[]) AS lane (id)
