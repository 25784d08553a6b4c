-- queue_is_served(queue, moment): whether calls of a queue may be admitted by this pass: one for a fetch over HTTP
-- (`is_pull`), or one that publishes.
CASE WHEN {{queue_is_pulled({{queue}})}} THEN %(is_pull)s::bool
     ELSE NOT %(is_pull)s::bool AND (NOT %(is_gated)s::bool OR {{queue_has_worker({{queue}}, {{moment}})}}) END
