-- read_clock: the time by the database's clock.
SELECT clock_timestamp() AS database_time
