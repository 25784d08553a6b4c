-- finish_and_choose: record how attempts of one worker ended (see finish_calls), and lock up to `most` lanes of its
-- direct queues and their keys, for start_chosen, which follows in the same transaction.
-- A setting of the transaction takes the lanes and keys to it. The lanes: those that are parked on the keys that the
-- ends have freed and on `keys`, and those that their queues hold; by priority, then the least recently served. Lanes
-- and keys that another transaction has locked are skipped, the lanes of such keys are left out (`busy`), and so are
-- those that spend a key of `avoid`. Locks the calls in order of id, the lanes, then the keys in order of id. What is
-- free must be counted by a later statement: this one's snapshot is older than its locks. Relies on lane_parked and
-- lane_held.
{{lanes_taken(found, NULL::bigint, NULL::jsonb)}}
