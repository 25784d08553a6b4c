-- limit_in_force(holds, key, limit): one limit of a key: the override's where the override holds, else the key's own;
-- none of a key that is observed.
CASE WHEN {{key}}.is_observed THEN NULL WHEN {{holds}} THEN {{key}}.override_{{limit}} ELSE {{key}}.{{limit}} END
