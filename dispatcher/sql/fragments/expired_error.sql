-- expired_error(call): the error of a call that did not start in time.
jsonb_build_object('type', 'Expired', 'message', 'not started by ' || {{call}}.expires_at, 'attempt', {{call}}.attempt,
                   'occurred_at', {{now}})
