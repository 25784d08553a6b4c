-- read_clock: the time by the database's clock.
SELECT {{now}} AS database_time
