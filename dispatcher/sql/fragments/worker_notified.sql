-- worker_notified(worker): notify a worker on its channel. For a transaction of its own: a commit that notifies holds a
-- lock of the whole database.
pg_notify('dispatcher_' || replace({{worker}}::text, '-', ''), '')::text
