-- claim_call: win the right to run one attempt of a call that was dispatched: this is its start. It is the function
-- claim. The commit waits for the disk with `is_durable`, as the server's setting says; else what a crash loses of it,
-- the end still proves.
SELECT start_at, refused, attempt, retry, queue, is_paced, is_counted, at,
       CASE WHEN NOT %(is_durable)s::bool THEN set_config('synchronous_commit', 'off', true) END AS commit
  FROM {{@claim}}(%(call)s::uuid, %(ticket)s::uuid, %(claim)s::uuid, %(worker)s::uuid, %(most_ahead)s::interval,
                  {{tuning}}, NULL)
