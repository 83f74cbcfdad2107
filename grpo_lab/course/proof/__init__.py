"""`prove`: every right answer that we know is accepted, every wrong one is rejected and named."""
