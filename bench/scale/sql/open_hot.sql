-- open_hot: time opens the key of parked.sql.
UPDATE dispatcher_ratelimitkey SET opens_at = clock_timestamp() WHERE name = 'hot';
