-- may_be_locked(most): the limit of lanes that lane_locked tries one after the other, until it has `most`: others may
-- have locked the first. With a limit, whose value it does not know, the planner reads them in the order of an index.
LIMIT {{most}} + 10000
