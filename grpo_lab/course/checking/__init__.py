"""`check` and what it needs: run a student's function on the cases, compare, and say what is not right yet."""
