-- fetch_lease_end(call, job, moment): when the lease of a call that is fetched over HTTP ends: after what the worker
-- asked for, else the job's own, else the usual; and never after the attempt's time.
LEAST({{moment}} + COALESCE(%(lease)s::interval, {{job}}.visibility, %(usual)s::interval),
      {{call}}.started_at + {{job}}.timeout)
