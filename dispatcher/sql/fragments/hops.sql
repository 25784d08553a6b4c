-- hops(hop, rows, column, among, after, goes_on): a recursive CTE over the values of a column that come after one, in
-- their order, each once, with its number: of those rows of a table that are `among`, as long as it `goes_on`. It hops
-- from value to value on an index that begins with the column, or with what `among` compares: how many rows have one
-- costs nothing.
{{hop}} AS (
    (SELECT found.{{column}} AS value, 1 AS number
       FROM {{rows}} AS found
      WHERE found.{{column}} > {{after}} AND {{among}}
      ORDER BY found.{{column}}
      LIMIT 1)
     UNION ALL
    SELECT next.value, {{hop}}.number + 1
      FROM {{hop}}
     CROSS JOIN LATERAL (
           SELECT found.{{column}} AS value
             FROM {{rows}} AS found
            WHERE found.{{column}} > {{hop}}.value AND {{among}}
            ORDER BY found.{{column}}
            LIMIT 1) AS next
     WHERE {{goes_on}}
)
