-- open_hot: time opens the key of parked.sql.
INSERT INTO dispatcher_note (at, key_id) VALUES (clock_timestamp(), 30000000);
