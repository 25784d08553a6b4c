-- touch_pull_worker: record that a worker that fetches over HTTP is alive; return its directive.
-- A worker seen less than a second ago with the same values is not updated: a busy worker fetches many times a second.
WITH known AS MATERIALIZED (
    SELECT worker.directive
      FROM dispatcher_ojs_pullworker AS worker
     WHERE worker.id = %(worker)s::uuid AND worker.seen_at > clock_timestamp() - interval '1 second'
       AND worker.queues = COALESCE(%(queues)s::varchar[], worker.queues)
       AND worker.state = COALESCE(%(state)s::text, worker.state)
), noted AS (
    INSERT INTO dispatcher_ojs_pullworker AS worker (id, name, queues, state, seen_at)
    SELECT %(worker)s::uuid, %(name)s::text, COALESCE(%(queues)s::text[], '{}'), COALESCE(%(state)s::text, 'running'),
           clock_timestamp()
     WHERE NOT EXISTS (SELECT FROM known)
        ON CONFLICT (id) DO UPDATE
       SET seen_at = clock_timestamp(), queues = COALESCE(%(queues)s::text[], worker.queues),
           state = COALESCE(%(state)s::text, worker.state)
    RETURNING directive
)
SELECT directive FROM known UNION ALL SELECT directive FROM noted
