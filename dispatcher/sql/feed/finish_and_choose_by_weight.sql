-- finish_and_choose_by_weight: what finish_and_choose does, where the weights of the worker's queues differ: the lanes
-- by priority, then by the weights of their queues (see limits.turns), for start_chosen_by_weight.
{{lanes_taken(weighted_found, due, %(shares)s::jsonb)}}
