"""The beginning of every notebook: one line about the machine, one seed, one look, one pace."""

import contextlib
import os
import platform
import warnings
from importlib.metadata import version

import torch

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import in_ipython, say
from grpo_lab.base.language import _, enter_folder, language
from grpo_lab.teaching.cell_errors import explain_errors
from grpo_lab.teaching.notebook.predictions import forget_predictions
from grpo_lab.teaching.notebook.prints import print_in_own_language, translated_print

PROFILES = ("fast", "full")
HIDDEN, RESULT = "hide-output", "The result:"  # the tag of a cell whose output is folded, and what stands on the fold


def profile() -> str:
    """The profile, which says how long notebooks may take: "full" for readers, "fast" for tests, on any machine.

    GRPO_LAB_PROFILE chooses. Where it is not set, a notebook that pytest runs (nbmake) is fast, and any other full.
    """
    chosen = os.environ.get("GRPO_LAB_PROFILE", "fast" if "PYTEST_CURRENT_TEST" in os.environ else "full")
    check_choice("GRPO_LAB_PROFILE", chosen, PROFILES)
    return chosen


def fast_or_full(fast, full):
    """The first value in the fast profile, the second in the full one: for sample sizes, steps, seeds and models."""
    return fast if profile() == "fast" else full


def begin(seed: int = 0) -> None:
    """Set the look of the plots, of errors, the seed and one thread of torch, and print versions and device.

    One thread is right for models as small as those of the series: two spend their time waiting for each other.
    """
    from grpo_lab.teaching.plots import use_style

    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    enter_folder()
    use_style()
    forget_predictions()
    if in_ipython():
        from IPython import get_ipython

        _begin_hidden_results()
        print_in_own_language(get_ipython().user_ns)
        explain_errors(get_ipython())
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(
        f"Python {platform.python_version()} · torch {torch.__version__.split('+')[0]} · "
        f"transformers {version('transformers')} · matplotlib {version('matplotlib')}"
    )
    print(translated_print(f"NVIDIA GPU: {gpu} · torch threads: 1 · profile: {profile()}", language()))


def _begin_hidden_results() -> None:
    """Begin folded results, from the next cell on, with a neutral line: JupyterLab shows the first one of a fold."""
    from IPython import get_ipython

    shell = get_ipython()
    with contextlib.suppress(ValueError):  # not there yet
        shell.events.unregister("pre_run_cell", _say_result)
    shell.events.register("pre_run_cell", _say_result)


def _say_result(info) -> None:
    """Print the neutral line of a folded result. JupyterLab sends the tags of a cell; an unattended run does not."""
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    metadata = kernel.get_parent().get("metadata", {}) if kernel is not None else {}
    if HIDDEN in metadata.get("tags", ()):
        say(_(RESULT))
