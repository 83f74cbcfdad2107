"""Mutation tests: plant mistakes in grpo_lab one at a time, and report those that no test notices.

`python -m tests.mutants` plants two families of mistakes. `errata` has mistakes in circulation, written as exact
replacements in our source. `lines` changes every line of mathematics with an equation (its comment ends in the
equation's number) in every way that `operators` defines: an operator, a sign, an axis, a constant, a mask, a stopped
gradient. A mutant that no test notices is a survivor. It shows that a test is missing; rarely, it is another way to
write the same formula, and equivalent.txt lists it with the reason.

The main process distributes the mutants to a few worker processes. Each worker is one pytest session that has
collected the tests once. For each mutant it puts the code of the changed function into the live module, runs tests
until one fails, and restores the old code. So a mutant takes as long as the tests until the one that kills it.
"""
