-- delete_mark: a fetch does not wait any more. Returns whether it was woken.
DELETE FROM dispatcher_feed AS feed
 WHERE feed.id = %(mark)s::uuid
RETURNING feed.idle_at IS NULL AS is_woken
