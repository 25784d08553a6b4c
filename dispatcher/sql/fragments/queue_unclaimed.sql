-- queue_unclaimed(queue): a subquery: how many calls of a queue are on their way to a worker, up to the bound
-- `ahead`. Its condition on the state lets the planner read a range of the index call_in_flight.
SELECT count(*) AS unclaimed
  FROM (SELECT
          FROM dispatcher_callqueue AS flown
         WHERE flown.queue = {{queue}} AND flown.state IN ('dispatched', 'active') AND flown.state >= 'dispatched'
         LIMIT %(ahead)s::int) AS flown
