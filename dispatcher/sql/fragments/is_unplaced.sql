-- is_unplaced(call): whether a call has no lane yet. Relies on the index call_unplaced.
{{call}}.lane_id IS NULL AND {{call}}.finished_at IS NULL
