-- fitting_calls: how many of these calls, in this order, an answer of `most` bytes has room for as jobs: one at least.
-- Steps from call to call, so that no more are read than fit, and one. Beside its texts a job has about 1 KB.
WITH RECURSIVE fitting AS (
    SELECT 0 AS number, 0::bigint AS bytes
     UNION ALL
    SELECT fitting.number + 1, fitting.bytes + 1000 + COALESCE(texts.bytes, 0)
      FROM fitting
      LEFT JOIN LATERAL (
           SELECT octet_length(concat(call.args, call.meta, call.retry, call.result, call.error, call.errors,
                                      job.envelope)) AS bytes
             FROM dispatcher_callqueue AS call
             LEFT JOIN dispatcher_ojs_job AS job ON job.call_id = call.id
            WHERE call.id = (%(calls)s::uuid[])[fitting.number + 1]
            LIMIT 1) AS texts ON true
     WHERE fitting.number < cardinality(%(calls)s::uuid[]) AND fitting.bytes <= %(most)s::bigint
)
SELECT GREATEST(1, max(fitting.number) FILTER (WHERE fitting.bytes <= %(most)s::bigint)) AS count
  FROM fitting
