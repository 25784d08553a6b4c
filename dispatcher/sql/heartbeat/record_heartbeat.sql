-- record_heartbeat: this worker lives, and what it holds keeps its slots for another lease: one statement, however much
-- that is.
-- Only what these tickets still own. A slot that another worker has started is left to that worker: this one holds a
-- duplicate of the message. A slot that another transaction has locked is left out: a claim renews it itself, and all
-- others are about to free it. Where the worker's own row is locked, its leases are renewed all the same. What a worker
-- holds was published, even if a crash of the database lost the note of that.
-- `is_back`: some of its queues did not count as served by it until now. `knows_more`: nor that they are served with
-- these tasks.
WITH {{clock}}, known AS MATERIALIZED (
    SELECT worker.serves_until, worker.queues, worker.tasks
      FROM dispatcher_worker AS worker
     WHERE worker.id = %(id)s::uuid
), alive AS (
    UPDATE dispatcher_worker AS worker
       SET seen_at = clock.now, processes = %(processes)s::int, lost_at = NULL,
           -- What is the same is kept as it is stored, out of line.
           tasks = CASE WHEN worker.tasks = %(tasks)s::varchar[] THEN worker.tasks ELSE %(tasks)s::varchar[] END,
           queues = CASE WHEN worker.stopped_at IS NULL THEN %(queues)s::varchar[] ELSE worker.queues END,
           serves_until = CASE WHEN worker.stopped_at IS NULL THEN clock.now + %(serves)s::interval
                               ELSE worker.serves_until END
      FROM clock
     WHERE worker.id = (SELECT mine.id FROM dispatcher_worker AS mine
                         WHERE mine.id = %(id)s::uuid FOR NO KEY UPDATE SKIP LOCKED)
), registered AS (
    INSERT INTO dispatcher_worker
           (id, name, host, pid, pool, processes, queues, tasks, started_at, seen_at, serves_until)
    SELECT %(id)s::uuid, %(name)s::text, %(host)s::text, %(pid)s::int, %(pool)s::text, %(processes)s::int,
           %(queues)s::text[], %(tasks)s::text[], clock.now, clock.now, clock.now + %(serves)s::interval
      FROM clock
     -- One that is being changed would be waited for.
     WHERE NOT EXISTS (SELECT FROM known)
        ON CONFLICT (id) DO NOTHING
), taken AS (
    -- A queue that was only named over HTTP is served by who comes first.
    UPDATE dispatcher_queue AS queue
       SET delivery = declared.delivery, is_undecided = false
      FROM unnest(%(queues)s::text[], %(deliveries)s::text[]) AS declared (name, delivery)
     WHERE queue.name = declared.name
       AND queue.name = ANY (ARRAY(SELECT open.name
                                     FROM dispatcher_queue AS open
                                    WHERE open.name = ANY (%(queues)s::text[]) AND open.is_undecided
                                      FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING queue.name
), mine AS MATERIALIZED (
    SELECT held.id
      FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS reserved (call_id, ticket)
      JOIN dispatcher_callqueue AS call ON call.id = reserved.call_id AND call.ticket = reserved.ticket
      JOIN dispatcher_slot AS held ON held.call_id = call.id
     WHERE held.started_at IS NULL OR held.worker_id IS NULL OR held.worker_id = %(id)s::uuid
       FOR NO KEY UPDATE OF held SKIP LOCKED
), unnoted AS MATERIALIZED (
    SELECT call.id
      FROM unnest(%(calls)s::uuid[], %(tickets)s::uuid[]) AS reserved (call_id, ticket)
      JOIN dispatcher_callqueue AS call ON call.id = reserved.call_id AND call.ticket = reserved.ticket
     WHERE call.published_at IS NULL
       FOR NO KEY UPDATE OF call SKIP LOCKED
), noted AS (
    UPDATE dispatcher_callqueue AS call
       SET published_at = clock.now
      FROM clock, unnoted
     WHERE call.id = unnoted.id
), renewed AS (
    UPDATE dispatcher_slot AS slot
       SET lease_until = clock.now + %(lease)s::interval, worker_id = %(id)s::uuid
      FROM clock, mine
     WHERE slot.id = mine.id
    RETURNING slot.id
)
SELECT (SELECT count(*) FROM renewed) AS slots,
       NOT EXISTS (SELECT FROM known WHERE known.serves_until > clock.now) OR EXISTS (SELECT FROM taken) AS is_back,
       NOT EXISTS (SELECT FROM known WHERE known.serves_until > clock.now AND known.tasks = %(tasks)s::varchar[]
                     AND known.queues = %(queues)s::varchar[]) AS knows_more
  FROM clock
