"""Forward passes over prompts and completions: log-probabilities, the fast paths, and the models that take them."""
