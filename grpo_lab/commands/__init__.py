"""What every command of the package does alike: its options, its errors, and how it ends.

An error is one line, which names the option, what it was, and what is expected. The exit code says of which kind it is.

0: done. 1: done, and what was looked for failed (a test of a card, a proof with gaps), or a fault of grpo_lab itself,
whose traceback is shown. 2: an option, a file or a package is not as it has to be. 130, 143: stopped by Ctrl-C and by
SIGTERM. 141: whoever read the output (`| head`) has gone. GRPO_LAB_TRACEBACK=1 shows where an error comes from.
"""

from grpo_lab.commands.files import writable_file, writable_folder
from grpo_lab.commands.parser import Parser, shell_line, version_line
from grpo_lab.commands.running import Stopped, command
