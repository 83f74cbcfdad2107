"""The beginning of every notebook: the seed, the look of figures, the profile, and two lines on versions and device."""

import contextlib
import os
import platform
import warnings
from importlib.metadata import version

import torch

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import in_ipython, say
from grpo_lab.base.language import _, enter_lesson_folder, language
from grpo_lab.teaching.kernel_start import explain_errors
from grpo_lab.teaching.messages import print_in_readers_language, translate_printed_text
from grpo_lab.teaching.notebook.predictions import forget_predictions

PROFILES = ("fast", "full")
HIDE_OUTPUT = "hide-output"  # tag of a cell whose output is folded
RESULT_LINE = "The result:"  # line before a folded output, which stays visible


def profile() -> str:
    """Return the profile, which determines how long notebooks may take: "full" for readers, "fast" for tests.

    The environment variable GRPO_LAB_PROFILE sets the profile. If it is not set, a notebook that pytest runs (by
    nbmake) has the profile "fast", and any other notebook "full".
    """
    chosen = os.environ.get("GRPO_LAB_PROFILE", "fast" if "PYTEST_CURRENT_TEST" in os.environ else "full")
    check_choice("GRPO_LAB_PROFILE", chosen, PROFILES)
    return chosen


def fast_or_full(fast, full):
    """Return the first value in the fast profile and the second in the full one, for example a number of steps."""
    return fast if profile() == "fast" else full


def begin(seed: int = 0) -> None:
    """Set the look of plots and errors, the seed and one thread for torch, and print versions and device.

    One thread, because the models of the series are so small that two threads would mostly wait for each other.

    Args:
        seed: The seed of torch's random numbers.
    """
    from grpo_lab.teaching.plots import use_style

    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    enter_lesson_folder()
    use_style()
    forget_predictions()
    if in_ipython():
        from IPython import get_ipython

        _announce_folded_outputs()
        print_in_readers_language(get_ipython().user_ns)
        explain_errors(get_ipython())
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(
        f"Python {platform.python_version()} · torch {torch.__version__.split('+')[0]} · "
        f"transformers {version('transformers')} · matplotlib {version('matplotlib')}"
    )
    print(translate_printed_text(f"NVIDIA GPU: {gpu} · torch threads: 1 · profile: {profile()}", language()))


def _announce_folded_outputs() -> None:
    """Print `RESULT_LINE` before each folded output, from the next cell on.

    JupyterLab shows the first line of a folded output, which would otherwise give the result away.
    """
    from IPython import get_ipython

    shell = get_ipython()
    with contextlib.suppress(ValueError):  # the function is not registered yet
        shell.events.unregister("pre_run_cell", _announce_folded_output)
    shell.events.register("pre_run_cell", _announce_folded_output)


def _announce_folded_output(info) -> None:
    """Print `RESULT_LINE` if the output of the running cell is folded.

    Only JupyterLab sends the tags of a cell; in an unattended run nothing is printed.
    """
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    metadata = kernel.get_parent().get("metadata", {}) if kernel is not None else {}
    if HIDE_OUTPUT in metadata.get("tags", ()):
        say(_(RESULT_LINE))
