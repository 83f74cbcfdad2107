"""One forward pass over prompts and completions: log-probabilities, the fast paths, and when a model takes them."""
