-- queue_is_served(queue, moment): whether calls of a queue may be admitted by this pass, which is for `delivery`.
{{queue_delivery({{queue}})}} = %(delivery)s::text
AND (%(delivery)s::text <> 'broker' OR NOT %(needs_worker)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}})
