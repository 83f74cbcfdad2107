"""Where code runs that somebody else wrote, a student or a model; and a database that is only read."""

from grpo_lab.sandbox.database import query_database, sqlite_tool
from grpo_lab.sandbox.python import Execution, execute, run_python
