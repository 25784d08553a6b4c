-- limited_since(key, moment): when the limits in force at a moment began to hold.
GREATEST({{key}}.limited_at, CASE WHEN {{key}}.override_until <= {{moment}} THEN {{key}}.override_until END)
