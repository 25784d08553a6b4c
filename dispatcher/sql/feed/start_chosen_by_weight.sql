-- start_chosen_by_weight: what start_chosen does, where the weights of the worker's queues differ.
-- A key's room and the starts go to the calls by priority, then by the weights of their queues (see limits.turns), then
-- turn by turn. All lanes are left with one that it can't settle, whose turns the others would take.
{{chosen_started(weighted_plain, weighted_able, due, %(shares)s::jsonb)}}
