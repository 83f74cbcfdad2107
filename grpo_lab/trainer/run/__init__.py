"""The life of a run: its inputs and their checks, its steps, its reports and its folder; stopping and resuming.

`run.py` is the run that the loop steps through, on the inputs that `inputs.py` checks. It opens its folder
(`folder.py`, with `checkpoint.py` and `fingerprints.py`) and a session (`session.py`): the part that both engines
share, which records the steps, shows them (`reports.py`, `trackers.py`) and handles signals.
"""

from grpo_lab.trainer.run.run import Run
