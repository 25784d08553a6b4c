-- lane_spends(lane, key): whether the calls of a lane spend a key: their own, or that of their queue.
{{lane}}.key_ids @> ARRAY[{{key}}.id] OR 'queue:' || {{lane}}.queue = {{key}}.name
