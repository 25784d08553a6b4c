-- limit_wait: for this transaction, wait for no lock for longer than this.
SELECT set_config('lock_timeout', %(wait)s::text, true) AS lock_timeout
