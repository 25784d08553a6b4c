-- calls_counted(condition, order): how many calls of the queue `wanted` meet this condition, up to `most`: in the order
-- of an index, so that no statistics make it cheap to read the table. Both name columns without the table.
(SELECT count(*) AS calls
   FROM (SELECT
           FROM dispatcher_callqueue AS call
          WHERE call.queue = wanted.name AND {{condition}}
          ORDER BY {{order}}
          LIMIT %(most)s::int) AS found)
