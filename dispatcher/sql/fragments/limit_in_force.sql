-- limit_in_force(holds, key, limit): one limit of a key: the override's where the override holds, else the key's own.
CASE WHEN {{holds}} THEN {{key}}.override_{{limit}} ELSE {{key}}.{{limit}} END
