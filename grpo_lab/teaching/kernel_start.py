"""An extension of IPython that explains errors as soon as a kernel has started.

If a cell is run too early, the error tells which cell to run first. `python -m grpo_lab.teaching.kernel_start` (in
`make setup`) writes the configuration that loads this extension in every kernel of the environment. Nothing heavy is
imported here, since it would delay the start of each kernel.
"""

import sys
from pathlib import Path

from grpo_lab.base.language import set_language_from_folder
from grpo_lab.teaching.cell_errors import explain_errors

CONFIGURATION = """# Written by grpo_lab: a cell that is run too early says which cell to run first.
c.InteractiveShellApp.extensions.append("grpo_lab.teaching.kernel_start")
"""


def load_ipython_extension(shell) -> None:
    """Explain errors in the language of the folder in which the kernel starts; IPython calls this function."""
    set_language_from_folder(Path.cwd())
    explain_errors(shell)


def explain_errors_in_every_kernel(environment: Path) -> Path | None:
    """Write the configuration that loads this extension in every kernel of a Python environment.

    Args:
        environment: The folder of the environment (`sys.prefix`).

    Returns:
        The configuration file; None if there is a different configuration already, which is left as it is.
    """
    file = environment / "etc" / "ipython" / "ipython_kernel_config.py"
    if file.exists() and file.read_text(encoding="utf-8") != CONFIGURATION:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CONFIGURATION, encoding="utf-8")
    return file


if __name__ == "__main__":
    configuration_file = explain_errors_in_every_kernel(Path(sys.prefix))
    print(configuration_file or f"{sys.prefix} already has another ipython_kernel_config.py, which is left as it is")
