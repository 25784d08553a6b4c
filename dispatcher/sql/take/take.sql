-- take: record how attempts ended, and start what may start: one trip, and the whole of it is the function take.
-- Who fetches a call reads its texts after it has been seen how much of it an answer has room for.
SELECT id, ticket, state, task, CASE WHEN row.is_whole THEN args END AS args,
       CASE WHEN row.is_whole THEN kwargs END AS kwargs, CASE WHEN row.is_whole THEN call_data END AS call_data,
       CASE WHEN row.is_whole THEN headers END AS headers, options, queue, attempt, retry, chosen_keys, scheduled_at,
       expires_at, key_ids, is_counted, start_at, fate, key, wake, again_at, publish, ended, locked, freed, is_full, at,
       turn
  FROM {{@take}}(
       %(worker)s::uuid, %(queues)s::text[], %(tasks)s::text[], %(room)s::int, %(becomes)s::text, %(publish)s::int,
       %(process)s::uuid, %(is_marked)s::bool, %(may_rest)s::bool, %(is_pulled)s::bool, %(keys)s::bigint[],
       %(calls)s::uuid[], %(tickets)s::uuid[], %(claims)s::uuid[], %(states)s::text[], %(reasons)s::text[],
       %(crashes)s::smallint[], %(results)s::jsonb[], %(errors)s::jsonb[], %(waits)s::interval[],
       %(due)s::bigint[], %(strides)s::bigint[], %(is_strict)s::bool, %(tuning)s::{{@tuning}}, %(now)s::timestamptz)
 CROSS JOIN LATERAL (SELECT NOT %(is_pulled)s::bool OR state IS DISTINCT FROM 'active' AS is_whole) AS row
