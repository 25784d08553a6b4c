-- find_token: the token with this hash, unless it was revoked or has expired. `is_limited`: a key of its name exists.
SELECT token.name, token.scopes,
       EXISTS (SELECT FROM dispatcher_ratelimitkey AS key WHERE key.name = 'token:' || token.name) AS is_limited
  FROM dispatcher_ojs_apitoken AS token
 WHERE token.digest = %(digest)s::text AND token.is_active
   AND {{not_expired(token, clock_timestamp())}}
