"""What students get: stubs, assignments, written questions, and the export to nbgrader."""
