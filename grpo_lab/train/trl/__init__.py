"""TRL: files with its configuration (`--config FILE`), and runs on its trainer (`--engine trl`).

`table.py` says what each name in TRL's configuration is here; `file.py` reads files by it, and `settings.py` hands the
settings of a run to TRL by it. Only the modules `run`, `recorder` and `trainer` import TRL or what comes with it.
"""
