-- claim_call: win the right to run one attempt of a call that was dispatched: this is its start. It is the function
-- claim. Where a server does not wait for the disk, an end still proves what a crash loses of it.
SELECT start_at, refused, attempt, retry, queue, is_paced, is_counted, at
  FROM {{@claim}}(%(call)s::uuid, %(ticket)s::uuid, %(claim)s::uuid, %(worker)s::uuid, %(most_ahead)s::interval,
                  %(tuning)s::{{@tuning}}, %(now)s::timestamptz)
