"""`python -m grpo_lab.formulas`: every equation of the package, with the line that computes it."""

from grpo_lab.formulas.catalogue import main

main()
