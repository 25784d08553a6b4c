-- queue_is_published(queue, moment): whether the calls of a queue may be published: nothing fetches them over HTTP,
-- and a live worker serves the queue, or nothing asks whether one does.
NOT {{queue_is_pulled({{queue}})}}
AND (NOT %(is_gated)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}})
