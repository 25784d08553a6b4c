-- find_groups: the groups that these keys are members of.
{{groups_of(%(keys)s::bigint[])}}
