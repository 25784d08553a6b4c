"""Direct delivery in a Celery worker: each process of the pool takes calls from PostgreSQL, and runs them.

A loop (`loop`) in each process records how its last calls ended and takes the next ones in one trip (`trips`), by a
connection of its own (`session`), and runs each by Celery's own tracer (`call`). The main process only keeps
(`keeper`): it submits the loops to the pool, lends processes to messages of the broker, watches time limits and deaths
by what each loop writes into shared memory (`shared`).
"""
