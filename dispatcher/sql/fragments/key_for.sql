-- key_for(key, cost, moment): a subquery: what a key, by its id, does to a call of this cost: whether it has room for
-- it, and when time alone makes some; of a group also how many members it has. No row: the key is gone.
SELECT allowed.name,
       {{has_room(allowed, {{cost}}, {{moment}})}} AND (NOT allowed.is_group OR COALESCE(several.have_room, false))
           AS has_room,
       COALESCE({{@opening}}(allowed, {{cost}}, %(horizon)s::interval, %(margin)s::interval, %(ramp)s::interval,
                             {{moment}}), several.opens_at) AS opens_at,
       CASE WHEN allowed.is_group THEN several.keys END AS members
  FROM {{@room}}(ARRAY[{{key}}], NULL, {{moment}}, %(margin)s::interval, %(ramp)s::interval) AS allowed
 CROSS JOIN LATERAL (
       SELECT count(*) AS keys, bool_or({{has_room(member, {{cost}}, {{moment}})}}) AS have_room,
              min({{@opening}}(member, {{cost}}, %(horizon)s::interval, %(margin)s::interval, %(ramp)s::interval,
                               {{moment}})) FILTER (WHERE member.fits >= {{cost}}) AS opens_at
         FROM {{@room}}(CASE WHEN allowed.is_group THEN {{@members_of}}(allowed.name) ELSE '{}' END, NULL, {{moment}},
                        %(margin)s::interval, %(ramp)s::interval) AS member) AS several
