-- keys_of_others(keys): which of these keys the first lane parked on them makes the business of others: it is not of
-- `queues`. Relies on the index lane_parked.
ARRAY(SELECT key.id
        FROM unnest({{keys}}) AS key (id)
       WHERE (SELECT lane.queue <> ALL (%(queues)s::text[])
                FROM dispatcher_lane AS lane
               WHERE lane.parked_on_id = key.id
               ORDER BY lane.priority DESC, lane.served_at, lane.id
               LIMIT 1))
