-- queue_is_served(queue, moment): whether calls of a queue may be admitted by this pass, which is for `deliveries`.
{{queue_delivery({{queue}})}} = ANY (%(deliveries)s::text[])
AND (NOT %(needs_worker)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}})
