-- commit: commit the transaction; it travels with the last statement of the transaction.
COMMIT
