-- lanes_left_asleep(ones, others): the lanes of these two CTEs that are locked and not chosen, and sleep by now.
ARRAY(SELECT lane.id
        FROM (SELECT id, is_asleep FROM {{ones}} UNION ALL SELECT id, is_asleep FROM {{others}}) AS lane
       WHERE lane.is_asleep AND lane.id <> ALL (chosen.lanes))
