"""What every command of the package does alike: its options, its errors, and how it ends.

An error is one line with the option, its value and what is expected. Exit codes: 0, done; 1, done, and a check failed,
or a bug of grpo_lab, with its traceback; 2, a wrong option, file or package; 130 and 143, stopped by Ctrl-C or SIGTERM;
141, whoever read the output (`| head`) has gone. GRPO_LAB_TRACEBACK=1 shows where an error comes from.
"""

from grpo_lab.base.parser import Parser, command_name, shell_line, version_line, writable_file, writable_folder
from grpo_lab.base.running import Stopped, command
