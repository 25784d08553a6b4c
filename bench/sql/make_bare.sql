-- make_bare: the table of six columns that a project would write to have something done later.
CREATE TABLE bench_plain (
    id uuid PRIMARY KEY,
    task varchar(255) NOT NULL,
    args jsonb NOT NULL,
    kwargs jsonb NOT NULL,
    queue varchar(255) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)
