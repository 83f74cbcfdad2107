"""`python -m grpo_lab.memory`: plan and advice, from a shell."""

from grpo_lab.memory.command import main

main()
