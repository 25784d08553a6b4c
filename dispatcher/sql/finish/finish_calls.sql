-- finish_calls: record how attempts of one worker ended, as finish_call does for one, and give their slots back.
-- No row of a call means that its ticket was replaced, or that an answer was lost that recorded it. Locks the calls in
-- order of id.
WITH {{clock}}, {{attempts_ended}}
SELECT ARRAY(SELECT ended.id FROM ended) AS calls, freed_keys.ids AS keys
  FROM freed_keys
