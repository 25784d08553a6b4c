"""Global limits for Celery that hold, kept in PostgreSQL.

A call walks these steps, one module of `lifecycle` and its statements in `sql` each:

send     write the call in the caller's own transaction; it waits in its lane
take     start waiting calls as far as every limit of every key has room, and record the ends of those before
run      call the task; its end becomes a value, which the next take records
publish  through the broker: a take dispatches calls, which are handed to Celery after the commit
claim    and a worker starts one, proven by its ticket
recover  put back what a dead process or a lost message left behind

`api` is the public module. `engine` composes the steps; `celery` runs the engine in workers. `limits` is the
arithmetic, `messages` is what a Celery message carries, `lanes` are the rows in which calls wait. `audit` and `reports`
look at all of it; `ojs` is an app of its own, the Open Job Spec over HTTP, and the core does not import it.
"""
