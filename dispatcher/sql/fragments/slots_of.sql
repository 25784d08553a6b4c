-- slots_of(keys): a subquery: what the slots of each of these keys hold. All keys at once and in the order of the index
-- slot_key: key by key, a plan from a time without slots reads the unique index, in which the key comes second, whole.
SELECT slot.key_id, sum(slot.cost)::bigint AS held,
       COALESCE(sum(slot.cost) FILTER (WHERE slot.started_at IS NULL), 0)::bigint AS unstarted
  FROM dispatcher_slot AS slot
 WHERE slot.key_id = ANY ({{keys}})
 GROUP BY slot.key_id
 ORDER BY slot.key_id
