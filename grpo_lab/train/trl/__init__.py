"""TRL: files with its configuration (`--config FILE`), and runs on its trainer (`--engine trl`).

- The table: `table.py` says what each name in TRL's configuration is here, and `other_versions.py` what names of other
  versions are. The kinds of entries are in `entry.py`.
- Files for TRL: `file.py` translates them by the table, with `counts.py` for what TRL counts in other units. The result
  is a `Translation` (`translation.py`).
- Runs on TRL: `settings.py` chooses by the table what TRL receives of the settings of a run. `run.py` trains. It needs
  TRL's trainer (`trainer.py`), our rewards in its form (`rewards.py`), what a run records (`recorder.py`), and models
  that are divided among processes (`fsdp.py`). Only `run`, `recorder` and `trainer` import TRL.
"""
