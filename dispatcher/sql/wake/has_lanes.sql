-- has_lanes: whether these queues hold lanes that spend none of the keys `reached`. Relies on the index lane_held.
SELECT EXISTS (SELECT
                 FROM unnest(%(queues)s::text[]) AS mine (name)
                WHERE {{first_lane_within(mine.name, %(reached)s::bigint[])}} IS NOT NULL
                  AND NOT ({{queue_spends(mine.name, %(reached)s::bigint[])}})) AS has_lanes
