-- clock: a CTE with one row and one column, `now`: all that reads it sees the same time.
clock AS MATERIALIZED (
    SELECT {{now}} AS now
)
