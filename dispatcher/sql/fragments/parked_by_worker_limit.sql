-- parked_by_worker_limit(limit, lane): whether a lane on a key with a limit per worker waits because the broker
-- delivers its queue: no pass for the broker can keep that limit.
{{limit}} IS NOT NULL
AND {{queue_delivery((SELECT mine.queue FROM dispatcher_lane AS mine WHERE mine.id = {{lane}}))}} = 'broker'
