-- is_in_flight: whether a call is dispatched or active. Relies on the index call_in_flight.
state IN ('dispatched', 'active')
