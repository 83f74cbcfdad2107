"""List the parts of the package that are mathematics."""

# In reading order. The parts that the others import come first.
MATHEMATICS = ("policy_gradient", "advantages", "logprobs", "kl", "objective")
