-- queue_is_published(queue, moment): whether the calls of a queue may be published: the broker delivers them, and a
-- live worker serves the queue, or nothing asks whether one does.
{{queue_delivery({{queue}})}} = 'broker'
AND (NOT %(needs_worker)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}})
