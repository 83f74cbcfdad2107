"""TRL: files with its configuration (`--config FILE`), and runs on its trainer (`--engine trl`).

`table.py` says what each name in TRL's configuration is here. `file.py` reads files by it, and `settings.py` chooses by
it what TRL receives of the settings of a run. Only the modules `run`, `recorder` and `trainer` need TRL.
"""
