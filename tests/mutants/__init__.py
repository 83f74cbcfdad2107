"""Known mistakes, planted in grpo_lab one at a time: does a test notice each? `python -m tests.mutants` says so.

Two families. `errata` holds the mistakes in circulation, written as exact replacements in our source. `lines` changes
every line of mathematics that stands beside an equation (its comment ends in the equation's number) in every small way
that `operators` knows: an operator, a sign, an axis, a constant, a mask, a stopped gradient. A mutant that no test
notices is a survivor: a missing test, or, rarely, another way to write the same thing, which `equivalent` lists with
its reason.

How it runs: the parent chooses the mutants and hands them to a few worker processes. Each worker is one pytest session
that has collected the tests once. For a mutant it puts the code of the changed function into the live module, runs
tests until one fails, and puts the old code back. So a mutant costs as much as the test that kills it.
"""
