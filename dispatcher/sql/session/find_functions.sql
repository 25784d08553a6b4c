-- find_functions: of the functions and types with these names those that are there; `is_allowed`: to this role, too.
-- In the search path of the connection, as a statement that calls them finds them.
SELECT proc.proname::text AS name, has_function_privilege(proc.oid, 'EXECUTE') AS is_allowed
  FROM pg_proc AS proc
 WHERE proc.proname = ANY (%(names)s::text[]) AND pg_function_is_visible(proc.oid)
 UNION ALL
SELECT typed.typname::text, true
  FROM pg_type AS typed
 WHERE typed.typname = ANY (%(names)s::text[]) AND pg_type_is_visible(typed.oid)
