"""The options of `grpo-lab train`: `read_options` makes one value of what was typed and what a file or a run holds."""

from argparse import SUPPRESS
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_lab.base import Parser, command_name, shell_line, writable_folder
from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.base.option import default_values
from grpo_lab.command_options import (
    COMMAND_OPTIONS,
    ENGINE_OPTIONS,
    EVALUATE_OPTION_DEFAULTS,
    STEP_SETTING_OF_OPTION,
    TRL,
    add_options,
    check_no_code_named,
    option_actions,
    option_words,
    options_naming_code,
    read_settings,
)
from grpo_lab.config import MAY_CHANGE_ON_RESUME, SETTINGS
from grpo_lab.config.defaults import MICROBATCH_SETTINGS
from grpo_lab.config.settings import without_default_tool_timeout
from grpo_lab.task_spec import TASK_OPTIONS
from grpo_lab.tasks.data_options import DATA_OPTION_NAMES

# The options that may be typed to change a resumed run. The two options left out name the run itself.
CHANGEABLE_OPTIONS = tuple(
    name for name in MAY_CHANGE_ON_RESUME if name not in ("output_dir", "resume_from_checkpoint")
)
# The defaults of the settings depend on the model and the task. A dry run names a folder, which it does not make.
COMMAND_OPTION_DEFAULTS = default_values(COMMAND_OPTIONS) | {"output_dir": "outputs/run"}


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, in three layers: an option has its typed value, else its stored one, else its default.

    typed: The options on the command line, by name.
    stored: The options in a file (`--config`), or of the run that is resumed; a typed option of the same name hides
        its stored value.
    changed_settings: The settings in the file that the engine replaces or drops, by name: the value in the file, and
        its replacement or the reason why it is dropped.
    """

    typed: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    changed_settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @cached_property
    def explicit(self) -> Mapping[str, Any]:
        """The options that somebody chose, by name: typed or stored."""
        return ChainMap(self.typed, self.stored)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The value of each option by name, except for settings that nobody chose."""
        return ChainMap(self.typed, self.stored, COMMAND_OPTION_DEFAULTS)

    @property
    def model(self) -> str:
        """The name of the model, as `load_policy` takes it."""
        return self.values["model"]

    @property
    def output_dir(self) -> str:
        """The folder of the run."""
        return self.values["output_dir"]

    @property
    def is_dry_run(self) -> bool:
        """Whether the plan is only reported."""
        return self.values["dry_run"]

    @property
    def tools(self) -> list[str] | None:
        """The names of the tools."""
        return self.values["tools"]

    @property
    def environment(self) -> str | None:
        """The name of the class of environments."""
        return self.values["environment"]

    @property
    def num_train_epochs(self) -> float | None:
        """How often each problem is sampled; None if the number of steps is a setting."""
        return self.values["num_train_epochs"]

    @property
    def warmup_ratio(self) -> float | None:
        """The share of the steps in which the learning rate rises; None if their number is a setting."""
        return self.values["warmup_ratio"]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that somebody chose, and the folder of the run."""
        return {name: self.values[name] for name in SETTINGS if name in self.explicit or name == "output_dir"}

    @property
    def task_options(self) -> dict[str, Any]:
        """The arguments of `make_task_spec`: the options of the task, and the weights of its rewards."""
        return {name: self.values.get(name) for name in (*TASK_OPTIONS, "reward_weights")}

    @property
    def engine_options(self) -> dict[str, Any]:
        """The options that somebody chose of the engine and what it trains."""
        return {name: self.explicit[name] for name in ENGINE_OPTIONS if name in self.explicit}

    @property
    def saved(self) -> dict[str, Any]:
        """The options that the run saves with its settings: its model and its task, and those that somebody chose."""
        unsaved = {"dry_run", *STEP_SETTING_OF_OPTION, *SETTINGS}
        names = {"model", *TASK_OPTIONS, *self.explicit} - unsaved
        return {name: value for name, value in self.values.items() if name in names}

    def resuming_command(self) -> str:
        """Return the command that resumes the run, with the options that have to be typed since they name code."""
        words = [*command_name("train").split(), "--resume_from_checkpoint", self.output_dir]
        for name, words_of_option in options_naming_code(self.explicit).items():
            words += words_of_option if name != "output_dir" else []
        return shell_line(words)

    def evaluation_command(self) -> str:
        """Return the command that evaluates the trained model, quoted for this machine's shell."""
        words = [*command_name("evaluate").split(), "--model", self.output_dir]
        first_names = ("task", *DATA_OPTION_NAMES, "reward_funcs", "system_prompt", "max_completion_length")
        for name in dict.fromkeys((*first_names, *EVALUATE_OPTION_DEFAULTS)):
            value = self.values.get(name)
            if value is not None and value != EVALUATE_OPTION_DEFAULTS.get(name):
                words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
        return shell_line(words)


def read_options(arguments: list[str] | None = None) -> RunOptions:
    """Read the options of a run from the command line, and from the file or the resumed run that it names."""
    parser = train_parser()
    typed = _parse(parser, arguments)
    stored: dict[str, Any] = {}
    changed_settings: dict[str, tuple[Any, Any]] = {}
    file, run_folder = typed.pop("config", None), typed.get("resume_from_checkpoint")
    if isinstance(run_folder, str):
        if file is not None:
            conflict = "is given together with resume_from_checkpoint DIR"
            raise InputError("config", str(file), "expected one of them", problem=conflict)
        stored = _options_of_run(run_folder, typed, parser)
        typed["resume_from_checkpoint"] = True
    elif file is not None:
        settings_file = file / SETTINGS_FILE if file.is_dir() else file
        stored = _options_in_file(settings_file, "config", str(file), typed, parser)
        if "generation_batch_size" in typed:  # the file splits a batch of another size into micro-batches
            stored = {name: value for name, value in stored.items() if name not in MICROBATCH_SETTINGS}
        if (typed.get("engine") or stored.get("engine")) == TRL:
            from grpo_lab.train.trl.settings import adapt_settings_of_file  # not needed without a file

            stored, changed_settings = adapt_settings_of_file(stored, typed)
    # A typed option replaces the other one of its pair, such as max_steps and num_train_epochs.
    for pair in STEP_SETTING_OF_OPTION.items():
        for name, other in (pair, pair[::-1]):
            if name in typed and other not in typed:
                stored.pop(other, None)
    options = RunOptions(typed, stored, changed_settings)
    if "output_dir" not in options.explicit and not options.is_dry_run:
        parser.error("the following arguments are required: --output_dir")
    return options


def _parse(parser: Parser, words: list[str] | None) -> dict[str, Any]:
    """Return the options in these words by name; "none" is None for a setting, and leaves any other option out."""
    options = vars(parser.parse_args(words))
    return {name: value for name, value in options.items() if value is not None or name in SETTINGS}


def _options_of_run(run_folder: str, typed: dict[str, Any], parser: Parser) -> dict[str, Any]:
    """Return the options of the run in a folder; raise InputError for a typed option that may not differ from them."""
    settings_file = Path(run_folder) / SETTINGS_FILE
    stored = _options_in_file(settings_file, "resume_from_checkpoint", run_folder, typed, parser)
    if "model" not in stored:
        origin = f"is {run_folder!r}, begun by a script"
        raise InputError("resume_from_checkpoint", run_folder, "go on from the script", problem=origin)
    stored["output_dir"] = run_folder
    specs = COMMAND_OPTIONS | SETTINGS
    # A run stores the steps that `num_train_epochs` and `warmup_ratio` were converted to. `make_plan` converts typed
    # ones again, and `RunFolder` then compares the steps with the stored ones.
    unchecked = {"model", "dry_run", "resume_from_checkpoint", *CHANGEABLE_OPTIONS, *STEP_SETTING_OF_OPTION}
    for name in sorted(without_default_tool_timeout(typed).keys() - unchecked):
        value_of_run = stored.get(name, specs[name].default)
        if typed[name] != value_of_run:
            expected = f"expected {value_of_run!r}, as in the run in {run_folder!r}; the options that may change are "
            raise InputError(name, typed[name], expected + ", ".join(CHANGEABLE_OPTIONS))
    return stored


def _options_in_file(file: Path, option: str, value: str, typed: dict[str, Any], parser: Parser) -> dict[str, Any]:
    """Return the options in a file; raise InputError if it names code, or a network path, that was not typed.

    A file for TRL is translated, and a table of what becomes of its names is printed. The `output_dir` in the file is
    left out if one was typed, or if it is the file of the run that is resumed, which may have been moved.

    option: The option that named the file, for error messages.
    value: The value of that option, for error messages.
    """
    if not file.is_file():
        run_folder = file.parent.parent  # the folder of the run, if one of its checkpoints was named instead
        is_run = (run_folder / SETTINGS_FILE).is_file()
        hint = f", here {run_folder.as_posix()!r}: it goes on from its newest checkpoint" if is_run else ""
        raise InputFileError(option, value, f"expected a file of settings, or the output_dir of a run{hint}")
    from grpo_lab.train.trl.file import check_translation, is_from_trl, translate  # not needed without a file

    content, option_names = read_settings(file), option_actions(parser)
    if option == "config" and is_from_trl(content, option_names):
        translation = translate(content, option_names, typed)
        print(translation.table(str(file)))
        check_translation(translation, str(file))
        content = translation.options
    # Parsing this option tries whether the folder can be written to, so it is checked before, or not parsed.
    if "output_dir" in typed or option == "resume_from_checkpoint":
        content.pop("output_dir", None)
    check_no_code_named({name: value for name, value in content.items() if name == "output_dir"}, file)
    words = option_words(content, file, parser)
    parser.error_suffix = f" (in {str(file)!r})"
    try:
        options = _parse(parser, words)
    finally:
        parser.error_suffix = ""
    resumed_folder = options.get("resume_from_checkpoint")
    if isinstance(resumed_folder, str):  # a folder has a file of settings of its own
        expected = f"expected true or false; to go on in a folder, type --resume_from_checkpoint {resumed_folder} alone"
        problem = f"is {resumed_folder!r} in {str(file)!r}"
        raise InputError("resume_from_checkpoint", resumed_folder, expected, problem=problem)
    check_no_code_named({name: value for name, value in options.items() if name not in typed}, file)
    return options


def train_parser() -> Parser:
    """Return the parser of the command. An option that was not typed is absent from the result."""
    parser = Parser(
        prog="python -m grpo_lab.train",
        usage="%(prog)s --output_dir DIR [--model MODEL] [--task TASK] [options]",
        description="Train a policy with GRPO. Without --task: on sums, 1 for a right answer, 0 for a wrong one.",
        argument_default=SUPPRESS,
    )
    # Two settings that the command reads in its own way.
    parser.add_argument(
        "--output_dir",
        type=lambda text: str(writable_folder(text)),
        metavar="DIR",
        help="folder for checkpoints, metrics.jsonl and the trained model",
    )
    parser.add_argument(
        "--resume_from_checkpoint",
        type=_true_or_folder,
        metavar="true|DIR",
        help=f"go on in output_dir; or in DIR, with all that its {SETTINGS_FILE} says, of which these may "
        f"change: {', '.join(CHANGEABLE_OPTIONS)}",
    )
    add_options(
        parser, [spec for spec in SETTINGS.values() if spec.name not in ("output_dir", "resume_from_checkpoint")]
    )
    add_options(parser, COMMAND_OPTIONS.values())
    return parser


def _true_or_folder(text: str) -> bool | str:
    return text.lower() == "true" if text.lower() in ("true", "false") else str(Path(text))
