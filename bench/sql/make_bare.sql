-- make_bare: a table with the columns of calls and what a project would give it by itself: a key and one index.
CREATE TABLE bench_call (LIKE dispatcher_callqueue INCLUDING DEFAULTS);
ALTER TABLE bench_call ADD PRIMARY KEY (id);
CREATE INDEX bench_call_waiting ON bench_call (state, position);
