-- delete_mark: a fetch does not wait any more. Returns whether it was woken.
DELETE FROM dispatcher_process AS process
 WHERE process.id = %(mark)s::uuid
RETURNING process.idle_at IS NULL AS is_woken
