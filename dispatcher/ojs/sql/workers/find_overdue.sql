-- find_overdue: whether a lease of a call that was fetched over HTTP is over, and may be judged for all that is known.
-- Leases that the latest look could not judge are looked at once a second. Relies on the index slot_pulled.
SELECT (SELECT slot.id
          FROM dispatcher_slot AS slot
         WHERE slot.pulled_until <= (SELECT clock_timestamp())
         ORDER BY slot.pulled_until
         LIMIT 1) IS NOT NULL
       AND NOT EXISTS (SELECT
                         FROM dispatcher_leasecheck AS lease_check
                        WHERE lease_check.since > lease_check.checked_at - %(wait)s::interval
                          AND lease_check.checked_at > clock_timestamp() - interval '1 second') AS is_due
