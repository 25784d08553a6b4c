-- waits_alone_in(call, lane): whether a call of a lane waits alone, since it costs too much. Relies on the index
-- call_aside.
{{call}}.lane_id = {{lane}} AND {{call}}.oversized_key_id IS NOT NULL
