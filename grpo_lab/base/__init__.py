"""The base of the package. These names are for commands: reading options, printing errors, and exit codes.

An error of the user is one line with the option, its value and what is expected. GRPO_LAB_TRACEBACK=1 adds the
traceback. Exit codes:
    0: Success.
    1: A check that the command made has failed, or grpo_lab has a bug, whose traceback is printed.
    2: A wrong option or file, or a missing package.
    130, 143: The command was stopped by Ctrl-C or SIGTERM.
    141: The program that read the output (such as `| head`) has ended.
"""

from grpo_lab.base.commands import (
    Parser,
    Stopped,
    command,
    command_name,
    shell_line,
    version_line,
    writable_file,
    writable_folder,
)
