-- queue_spends(queue, keys): whether the queue's own key is one of these.
EXISTS (SELECT
          FROM dispatcher_ratelimitkey AS own
         WHERE own.id = ANY ({{keys}}) AND own.name = 'queue:' || {{queue}})
