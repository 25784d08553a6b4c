-- time_functions: for this transaction, let the server time each function; a superuser may, and a role that was granted
-- to set track_functions.
SELECT set_config('track_functions', 'all', true) AS track_functions
