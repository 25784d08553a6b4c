-- keys_named_by(table, column): the recursive CTE `hop`, of the keys that a column of a table names. Hops on the index
-- of that column, so the number of rows with one key costs nothing.
hop AS (
    (SELECT named.{{column}} AS key_id
       FROM {{table}} AS named
      WHERE named.{{column}} IS NOT NULL
      ORDER BY named.{{column}}
      LIMIT 1)
     UNION ALL
    SELECT next.key_id
      FROM hop
     CROSS JOIN LATERAL (
           SELECT named.{{column}} AS key_id
             FROM {{table}} AS named
            WHERE named.{{column}} > hop.key_id
            ORDER BY named.{{column}}
            LIMIT 1) AS next
)
