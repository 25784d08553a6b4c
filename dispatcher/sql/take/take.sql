-- take: record how attempts ended, and start what may start: one trip, and the whole of it is the function take.
SELECT id, ticket, state, task, args, kwargs, call_data, headers, options, queue, attempt, retry, chosen_keys, key_ids,
       is_counted, start_at, fate, key, wake, again_at, publish, ended, locked, freed, is_full, at
  FROM {{@take}}(
       %(worker)s::uuid, %(queues)s::text[], %(tasks)s::text[], %(room)s::int, %(becomes)s::text, %(publish)s::int,
       %(process)s::uuid, %(is_marked)s::bool, %(may_rest)s::bool, %(is_pulled)s::bool, %(keys)s::bigint[],
       %(calls)s::uuid[], %(tickets)s::uuid[], %(claims)s::uuid[], %(states)s::text[], %(reasons)s::text[],
       %(crashes)s::smallint[], %(results)s::jsonb[], %(errors)s::jsonb[], %(waits)s::interval[],
       %(due)s::bigint[], %(strides)s::bigint[], %(is_strict)s::bool, {{tuning}}, NULL)
