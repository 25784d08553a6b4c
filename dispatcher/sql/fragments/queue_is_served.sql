-- queue_is_served(queue, moment): whether a call of a queue could be taken now: a process of it is idle, or of the
-- broker's queues a live worker serves it, while fewer calls are on their way than may be.
CASE WHEN {{queue_delivery({{queue}})}} = 'broker'
     THEN {{queue_has_taker({{queue}}, {{moment}})}} AND NOT {{queue_is_full({{queue}})}}
     ELSE {{queue_has_idle({{queue}}, {{moment}})}} END
