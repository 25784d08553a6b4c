-- report_function_times: how often these functions ran in this session lately, and how long, in milliseconds: in all,
-- and without those that they called. What the server adds to its own statistics from time to time is not in it.
SELECT timed.funcname::text AS name, timed.calls::int AS calls, timed.total_time AS total_ms, timed.self_time AS own_ms
  FROM pg_stat_xact_user_functions AS timed
 WHERE timed.funcname = ANY (%(names)s::text[])
