-- lock_unique: lock these unique keys until the end of the transaction, so that senders go one after the other.
SELECT pg_advisory_xact_lock(number)::text AS lock
  FROM (SELECT DISTINCT hashtextextended('unique:' || name, 20251) AS number
          FROM unnest(%(names)s::text[]) AS wanted (name)
         ORDER BY number) AS wanted
