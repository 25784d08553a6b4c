-- finish_calls: record how attempts of one worker ended, as finish_call does for one, and give their slots back.
-- No row of a call means that its ticket was replaced, or that an answer was lost that recorded it. `other`: the keys
-- on which a lane of a queue that is not of `queues` is parked first. Locks the calls in order of id. Relies on
-- lane_parked.
WITH {{clock}}, {{attempts_ended}}
SELECT ARRAY(SELECT ended.id FROM ended) AS calls, freed_keys.ids AS keys, {{keys_of_others(freed_keys.ids)}} AS other
  FROM freed_keys
