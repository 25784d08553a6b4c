-- fetch_lease_end(call, moment): when the lease of a call that is fetched over HTTP ends: after what the worker asked
-- for, else the call's own, else the usual; and never after the attempt's time.
LEAST({{moment}} + COALESCE(%(lease)s::interval, {{call}}.visibility, %(usual)s::interval),
      {{call}}.started_at + {{call}}.timeout)
