-- bound_locks: until the end of this transaction, wait for a lock no longer than `wait`; return the bound before.
-- A bound that is in force already stands, unless `is_put_back`: `wait` is what this statement has returned.
WITH bound AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before)
SELECT bound.before
  FROM bound
 CROSS JOIN LATERAL (
       SELECT set_config('lock_timeout',
                         CASE WHEN bound.before = '0' OR %(is_put_back)s::bool THEN %(wait)s ELSE bound.before END,
                         true) AS now) AS changed
 WHERE changed.now IS NOT NULL
