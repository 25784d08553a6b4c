-- lock_unique: who sends calls with these unique keys goes one after the other, for as long as the transaction.
SELECT pg_advisory_xact_lock(number)::text AS lock
  FROM (SELECT DISTINCT hashtextextended('unique:' || name, 20251) AS number
          FROM unnest(%(names)s::text[]) AS wanted (name)
         ORDER BY number) AS wanted
