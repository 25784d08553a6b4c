-- begin: open a transaction; it travels with the first statement of the transaction.
BEGIN
