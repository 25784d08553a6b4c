-- queue_is_pulled(queue): whether workers fetch the calls of a queue over HTTP.
EXISTS (SELECT FROM dispatcher_queue AS pulled WHERE pulled.name = {{queue}} AND pulled.is_pulled)
