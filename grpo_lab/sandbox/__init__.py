"""Run code of a student or a model in a sandbox, and query a database without changing it."""

from grpo_lab.sandbox.database import query_database, sqlite_tool
from grpo_lab.sandbox.python import Execution, execute, run_python
