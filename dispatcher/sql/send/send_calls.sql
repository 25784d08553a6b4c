-- send_calls: see the function send.
SELECT sent.id, sent.position, sent.lane_id, sent.key_costs, sent.state, sent.created_at, sent.scheduled_at,
       sent.expires_at, sent.wake, sent.publish
  FROM {{@send}}(%(kinds)s::json, %(drafts)s::json, %(firsts)s::uuid[], %(silence)s::interval, %(is_eager)s::bool,
                 %(now)s::timestamptz) AS sent
