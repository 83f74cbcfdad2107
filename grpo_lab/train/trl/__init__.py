"""TRL: files with its configuration (`--config FILE`), and runs on its trainer (`--engine trl`).

- The table: `table.py` says what each name in TRL's configuration is here.
- Files for TRL: `file.py` translates them by the table into a `Translation`.
- Runs on TRL: `engine.py` is the engine that a command asks. `settings.py` chooses by the table what TRL receives of
  the settings of a run. `run.py` trains and records. It needs TRL's trainer with our rewards in its form
  (`trainer.py`), and models that are divided among processes (`fsdp.py`). Only `run` and `trainer` import TRL.
"""
