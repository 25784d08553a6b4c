-- audit_unserved_parked: keys with room for the first call of a lane that is parked on them, or that are gone, without
-- a note: no trip would look at them.
-- Hops from key to key on the index lanesite_place, so the number of lanes that are parked on one costs nothing.
-- Relies on slot_key, start_key and call_waiting.
WITH RECURSIVE {{clock}}, {{keys_named_by(dispatcher_lanesite, place)}}, {{keys_unserved(hop)}}
SELECT DISTINCT ON (unserved.name, unserved.key_id)
       'key ' || COALESCE(unserved.name, unserved.key_id::text) AS what, unserved.key_id::text AS target,
       concat_ws(' ', unserved.lane_id, unserved.call_id, unserved.version) AS version,
       json_build_object('lane', unserved.lane_id, 'first_call', unserved.call_id, 'cost', unserved.cost,
                         'is_gone', unserved.name IS NULL) AS facts,
       (SELECT count(DISTINCT each.key_id) FROM unserved AS each) AS total
  FROM unserved
 ORDER BY unserved.name, unserved.key_id, unserved.lane_id
 LIMIT %(most)s::int
