"""The options of `grpo-lab train`. A typed option overrides one from a file or from the run that is resumed."""

from argparse import SUPPRESS
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_lab.base import Parser, writable_folder
from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.command_options import (
    COMMAND_OPTIONS,
    STEP_SETTING_OF_OPTION,
    TRL,
    add_options,
    check_no_code_named,
    option_actions,
    option_words,
    read_settings,
)
from grpo_lab.config import MAY_CHANGE_ON_RESUME, SETTINGS
from grpo_lab.config.defaults import MICROBATCH_SETTINGS
from grpo_lab.config.settings import without_default_tool_timeout
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS

if TYPE_CHECKING:
    from grpo_lab.train.trl.settings import Difference

# The options that may be typed to change a resumed run. The two options left out name the run itself.
CHANGEABLE_OPTIONS = tuple(
    name for name in MAY_CHANGE_ON_RESUME if name not in ("output_dir", "resume_from_checkpoint")
)


def read_options(arguments: list[str] | None = None) -> dict:
    """Return the options of a run: typed ones, and below them those of a file (`--config`) or of a resumed run.

    This function is for scripts. The command calls `read_options_and_changes`, since it also reports the changes.
    """
    return read_options_and_changes(arguments)[0]


def read_options_and_changes(arguments: list[str] | None = None) -> tuple[dict, dict[str, "Difference"]]:
    """Read the options of a run, and the settings of a file that the chosen engine replaces or drops.

    Returns:
        The options by name, and the changed settings by name: the value in the file, and its replacement or the reason
        why it is dropped.
    """
    parser = train_parser()
    typed = _parse(parser, arguments)
    file = typed.pop("config", None)
    options_of_file = _options_of_file_or_run(file, typed, parser)
    changed_settings: dict[str, "Difference"] = {}
    engine = typed.get("engine") or options_of_file.get("engine")
    if file is not None and engine == TRL:
        from grpo_lab.train.trl.settings import adapt_settings_of_file

        options_of_file, changed_settings = adapt_settings_of_file(options_of_file, typed)
    options = {"model": COMMAND_OPTIONS["model"].default} | TASK_OPTION_DEFAULTS | options_of_file | typed
    if "output_dir" not in options and options.get("dry_run"):  # a dry run needs a name but writes no folder
        options["output_dir"] = "outputs/run"
    if "output_dir" not in options:
        parser.error("the following arguments are required: --output_dir")
    if isinstance(typed.get("resume_from_checkpoint"), str):
        options["resume_from_checkpoint"] = True
    return options, changed_settings


def _parse(parser: Parser, words: list[str] | None) -> dict:
    """Return the options in these words by name; "none" is None for a setting, and leaves any other option out."""
    options = vars(parser.parse_args(words))
    return {name: value for name, value in options.items() if value is not None or name in SETTINGS}


def _options_of_file_or_run(file: Path | None, typed: dict, parser: Parser) -> dict:
    """Return the options of the file, or of the resumed run, without those that a typed option replaces."""
    run_folder = typed.get("resume_from_checkpoint")
    if isinstance(run_folder, str):
        if file is not None:
            conflict = "is given together with resume_from_checkpoint DIR"
            raise InputError("config", str(file), "expected one of them", problem=conflict)
        options = _options_of_run(run_folder, typed, parser)
    elif file is not None:
        settings_file = file / SETTINGS_FILE if file.is_dir() else file
        options = _read_options_file(settings_file, "config", str(file), typed, parser)
        if "generation_batch_size" in typed:  # the file splits a batch of another size into micro-batches
            options = {name: value for name, value in options.items() if name not in MICROBATCH_SETTINGS}
    else:
        options = {}
    # A typed option replaces the other one of its pair, such as max_steps and num_train_epochs.
    for pair in STEP_SETTING_OF_OPTION.items():
        for name, other in (pair, pair[::-1]):
            if name in typed and other not in typed:
                options.pop(other, None)
    return options


def _options_of_run(run_folder: str, typed: dict, parser: Parser) -> dict:
    """Return the options of the run in a folder; raise InputError for a typed option that may not differ from them."""
    settings_file = Path(run_folder) / SETTINGS_FILE
    options = _read_options_file(settings_file, "resume_from_checkpoint", run_folder, typed, parser)
    if "model" not in options:
        origin = f"is {run_folder!r}, begun by a script"
        raise InputError("resume_from_checkpoint", run_folder, "go on from the script", problem=origin)
    options |= {"output_dir": run_folder}
    specs = COMMAND_OPTIONS | SETTINGS
    # A run stores the steps that epochs or a share were converted to. They are compared once they are converted again.
    unchecked = {"model", "dry_run", "resume_from_checkpoint", *CHANGEABLE_OPTIONS, *STEP_SETTING_OF_OPTION}
    for name in sorted(without_default_tool_timeout(typed).keys() - unchecked):
        value_of_run = options.get(name, specs[name].default)
        if typed[name] != value_of_run:
            expected = f"expected {value_of_run!r}, as in the run in {run_folder!r}; the options that may change are "
            raise InputError(name, typed[name], expected + ", ".join(CHANGEABLE_OPTIONS))
    return options


def _read_options_file(file: Path, option: str, value: str, typed: dict, parser: Parser) -> dict:
    """Read a file of options; raise InputError if it names code that was not typed.

    option: The option that named the file, for error messages.
    value: The value of that option, for error messages.
    """
    if not file.is_file():
        run_folder = file.parent.parent  # the folder of the run, if one of its checkpoints was named instead
        is_run = (run_folder / SETTINGS_FILE).is_file()
        hint = f", here {run_folder.as_posix()!r}: it goes on from its newest checkpoint" if is_run else ""
        raise InputFileError(option, value, f"expected a file of settings, or the output_dir of a run{hint}")
    content, option_names = read_settings(file), option_actions(parser)
    if option == "config":
        content = _translated_if_from_trl(content, file, option_names, typed)
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


def _translated_if_from_trl(content: dict, file: Path, option_names: Container[str], typed: dict) -> dict:
    """Return the options in a file; of a file for TRL, they are translated and a table of them is printed."""
    from grpo_lab.train.trl.file import check_translation, is_from_trl, translate

    if not is_from_trl(content, option_names):
        return content
    translation = translate(content, option_names, typed)
    print(translation.table(str(file)))
    check_translation(translation, str(file))
    return translation.options


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
