"""Where code that somebody else wrote runs: a student's submission, or what a model says."""
