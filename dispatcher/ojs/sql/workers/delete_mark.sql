-- delete_mark: a fetch does not wait any more. Returns whether it was woken, and for which keys.
DELETE FROM dispatcher_feed AS feed
 WHERE feed.worker_id = %(mark)s::uuid
RETURNING feed.key_ids, feed.idle_at IS NULL AS is_woken
