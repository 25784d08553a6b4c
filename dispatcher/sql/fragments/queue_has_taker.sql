-- queue_has_taker(queue, moment): whether anybody takes calls of a queue, or will when what it runs has ended: a live
-- worker of it; of the broker's queues anybody, where no worker need be known; and over HTTP anybody.
CASE {{queue_delivery({{queue}})}} WHEN 'http' THEN true
     WHEN 'broker' THEN NOT %(needs_worker)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}}
     ELSE {{queue_has_worker({{queue}}, {{moment}})}} END
