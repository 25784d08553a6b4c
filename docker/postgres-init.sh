#!/bin/bash
# Creates the application's role and its database, when the server starts on an empty volume. The role is no superuser; it
# owns its database, and sees the statistics of other sessions, which `dispatcher_audit` reports (old transactions).
set -eu
psql -v ON_ERROR_STOP=1 --no-psqlrc --username "$POSTGRES_USER" --dbname postgres \
    -v role="$APP_ROLE" -v database="$APP_DATABASE" <<'SQL'
\set password `cat "$APP_PASSWORD_FILE"`
CREATE ROLE :"role" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE :"database" OWNER :"role";
REVOKE CONNECT ON DATABASE :"database" FROM PUBLIC;
GRANT pg_read_all_stats TO :"role";
SQL
