-- has_room(allowed, cost, moment): whether a key, a row of the function room, lets a call of this cost start; what a
-- group's members allow is apart.
{{allowed}}.fits >= {{cost}} AND {{allowed}}.room >= {{cost}}
AND COALESCE({{allowed}}.next_at <= {{moment}} + %(horizon)s::interval, true)
