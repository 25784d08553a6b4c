-- tell_time: what the database's clock says.
SELECT clock_timestamp() AS told_at
