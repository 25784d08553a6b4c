-- keys_of_lane(lane): the keys that the calls of a lane spend, and the queue's own.
{{lane}}.key_ids
|| ARRAY(SELECT own.id FROM dispatcher_ratelimitkey AS own WHERE own.name = 'queue:' || {{lane}}.queue LIMIT 1)
