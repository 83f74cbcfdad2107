"""What a kernel does when it starts: a cell that is run before the first one says which cell to run.

`python -m grpo_lab.teaching.kernel_start` (in `make setup`) writes the configuration that asks for it, for every kernel
of the environment. Nothing heavy is imported here: it would delay each of them.
"""

import sys
from pathlib import Path

from grpo_lab.base.language import set_language_from_folder
from grpo_lab.teaching.cell_errors import explain_errors

CONFIGURATION = """# Written by grpo_lab: a cell that is run too early says which cell to run first.
c.InteractiveShellApp.extensions.append("grpo_lab.teaching.kernel_start")
"""


def load_ipython_extension(shell) -> None:
    """Explain errors from the start of a kernel on, in the language of the folder that it starts in."""
    set_language_from_folder(Path.cwd())
    explain_errors(shell)


def explain_errors_in_every_kernel(environment: Path) -> Path | None:
    """Write the configuration by which each kernel of a Python environment begins with this extension.

    None, and nothing is written, where another configuration stands there.
    """
    file = environment / "etc" / "ipython" / "ipython_kernel_config.py"
    if file.exists() and file.read_text(encoding="utf-8") != CONFIGURATION:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CONFIGURATION, encoding="utf-8")
    return file


if __name__ == "__main__":
    written = explain_errors_in_every_kernel(Path(sys.prefix))
    print(written or f"{sys.prefix} has an ipython_kernel_config.py of its own, which stays as it is")
