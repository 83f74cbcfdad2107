"""The life of a run: its inputs and their checks, its steps, its reports and its folder; stopping and resuming.

`run.py` is the run that the loop steps through, on the inputs that `inputs.py` checks. `session.py` is the part that
both engines share: it opens the folder (`folder.py`, with `checkpoint.py` and `fingerprints.py`) and the reports
(`reports.py`, `trackers.py`), and handles signals.
"""

from grpo_lab.trainer.run.run import Run
