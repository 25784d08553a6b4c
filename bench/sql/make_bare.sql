-- make_bare: a table with the columns of calls and what a project would give it by itself: a key and one index; and one
-- of six columns.
CREATE TABLE bench_call (LIKE dispatcher_callqueue INCLUDING DEFAULTS);
ALTER TABLE bench_call ADD PRIMARY KEY (id);
CREATE INDEX bench_call_waiting ON bench_call (state, position);
CREATE TABLE bench_plain (
    id uuid PRIMARY KEY,
    task varchar(255) NOT NULL,
    args jsonb NOT NULL,
    kwargs jsonb NOT NULL,
    queue varchar(255) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)
