-- relations: the tables of the dispatcher and their indexes, with their sizes in bytes; a table's own is without indexes.
SELECT tab.relname AS name, pg_table_size(tab.oid) AS bytes
  FROM pg_class AS tab
 WHERE tab.relkind = 'r' AND tab.relname ~ '^dispatcher_'
 UNION ALL
SELECT idx.relname, pg_relation_size(idx.oid)
  FROM pg_class AS tab
  JOIN pg_index AS link ON link.indrelid = tab.oid
  JOIN pg_class AS idx ON idx.oid = link.indexrelid
 WHERE tab.relkind = 'r' AND tab.relname ~ '^dispatcher_'
 ORDER BY name
