-- waits_in(call, lane): whether a call waits in a lane. Relies on the index call_waiting.
{{call}}.lane_id = {{lane}} AND {{call}}.state = 'available' AND {{call}}.oversized_key_id IS NULL
