-- tuning: what take and claim are given of the settings.
ROW(%(horizon)s::interval, %(lead)s::interval, %(slack)s::interval, %(paced_slack)s::interval,
    %(margin)s::interval, %(ramp)s::interval, %(later)s::interval, %(keep)s::interval, %(silence)s::interval,
    %(notes)s::timestamptz, %(lease)s::interval, %(dispatch_lease)s::interval, %(ahead)s::int, %(needs_worker)s::bool,
    %(any_delivery)s::bool, %(keeps_events)s::bool)::{{@tuning}}
