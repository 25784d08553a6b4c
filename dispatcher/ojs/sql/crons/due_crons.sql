-- due_crons: the names of the crons whose time has come.
SELECT cron.name
  FROM dispatcher_ojs_cron AS cron
 WHERE cron.next_run_at <= {{now}} AND cron.is_enabled
