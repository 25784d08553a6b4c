-- queue_is_full(queue): whether so many calls of a queue are on their way to a worker that a trip dispatches no more
-- (see queue_room). The condition on the state lets the planner read a range of the index call_in_flight.
(SELECT count(*) > %(ahead)s::int - GREATEST(%(ahead)s::int / 100, 1)
   FROM (SELECT
           FROM dispatcher_callqueue AS flown
          WHERE flown.queue = {{queue}} AND flown.state IN ('dispatched', 'active') AND flown.state >= 'dispatched'
          LIMIT %(ahead)s::int) AS flown)
