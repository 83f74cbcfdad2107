"""Speed and memory of training, beside TRL's: `python -m grpo_lab.bench --against trl`.

Figures of one machine at one hour mean little. So whatever is compared runs alternately, each run in a process of its
own with the same threads, and what is reported is the *ratio* within such a pair, with its spread over the pairs.
"""
