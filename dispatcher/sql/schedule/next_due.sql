-- next_due: how long until something falls due: a note, a call's time comes or it expires, the lease of a fetched call
-- runs out.
-- Relies on the indexes note_at, call_due, call_expires and slot_pulled.
-- Each is read by its first entry: min() would be planned as a read of the whole index where statistics call it empty.
SELECT LEAST((SELECT at FROM dispatcher_note ORDER BY at LIMIT 1),
             (SELECT scheduled_at FROM dispatcher_callqueue
               WHERE state IN ('scheduled', 'retryable') AND scheduled_at IS NOT NULL ORDER BY scheduled_at LIMIT 1),
             (SELECT expires_at FROM dispatcher_callqueue
               WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'pending', 'available', 'retryable')
               ORDER BY expires_at LIMIT 1),
             -- One that was over at the latest look could not be judged then (check_leases).
             (SELECT CASE WHEN pulled_until > lease_check.checked_at THEN pulled_until
                          ELSE GREATEST(pulled_until, lease_check.checked_at + interval '1 second') END
                FROM dispatcher_slot
                LEFT JOIN dispatcher_leasecheck AS lease_check ON true
               WHERE pulled_until IS NOT NULL ORDER BY pulled_until LIMIT 1))
       - {{now}} AS wait
