"""Speed and memory of training, compared with TRL's: `python -m grpo_lab.bench --against trl`.

Absolute seconds depend on the machine and on its load. Therefore the two trainers run alternately, each run in its own
process with the same number of threads. The benchmark reports the *ratio* within each pair of runs, and the spread of
the ratio over the pairs.
"""
