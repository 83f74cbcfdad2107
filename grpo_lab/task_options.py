"""The options of train, evaluate, chat and memory that name a task, its data, its rewards and its tools.

The parsers give these options no default: an option that was not typed may be set in the file of a run.
"""

from argparse import ArgumentParser

from grpo_lab.rewards.named import REWARD_FUNCTIONS
from grpo_lab.task_spec import BY_REWARDS, MODEL_TEMPLATE, SUMS
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.records import FILE_SUFFIXES


def add_task_options(parser: ArgumentParser) -> None:
    """Add --task, --chat_template and the options of `DataOptions`, for train, evaluate and memory."""
    about = "; ".join(f"{task.name} ({task.about})" for task in TASKS.values())
    parser.add_argument(
        "--dataset_name", "--task", dest="task", metavar="TASK",
        help=f"{about}; gym:NAME, of reasoning-gym (its GALLERY.md shows them); or data of your own with the columns "
        f"prompt and answer: a file ({', '.join(FILE_SUFFIXES)}), a folder of these, or OWNER/NAME of the Hugging Face "
        f"hub (default {SUMS})",
    )  # fmt: skip
    parser.add_argument(
        "--chat_template", choices=(MODEL_TEMPLATE, "none"),
        help='"none" gives the problems as plain text, as a base model needs them '
        f"(default: {MODEL_TEMPLATE}, its own)",
    )  # fmt: skip
    add_data_options(parser)


def add_data_options(parser: ArgumentParser) -> None:
    """Add the options of `DataOptions`, in an argument group."""
    add = parser.add_argument_group("data of your own").add_argument
    add("--dataset_config", metavar="NAME", help="configuration of a hub data set, or a folder in the folder")
    split = 'split to train on, or the beginning of its files\' names in a folder (default "train")'
    add("--dataset_train_split", "--dataset_split", dest="dataset_split", metavar="NAME", help=split)
    held_out = "split that is held out (default: of a hub data set a tenth of the problems; in a folder test, if any)"
    add("--dataset_test_split", metavar="NAME", help=held_out)
    add("--prompt_column", metavar="NAME", help="column with the prompts (default prompt)")
    add("--answer_column", metavar="NAME", help="column with the answers, for rewards that read one (default answer)")
    template = "prompt as a text with names of columns, such as 'Q: {question}'; in place of --prompt_column"
    add("--prompt_template", metavar="TEXT", help=template)


def add_reward_options(parser: ArgumentParser) -> None:
    """Add --reward_funcs and --system_prompt."""
    parser.add_argument(
        "--reward_funcs", nargs="+", metavar="REWARD",
        help=f"one or several of {', '.join(REWARD_FUNCTIONS)} (docs/own-task.md says what each gives), or "
        "FILE:function, one of your own, or module:function; the first says what is right (default: the task's)",
    )  # fmt: skip
    parser.add_argument(
        "--system_prompt", metavar="TEXT",
        help=f'what the system says before each problem, "none" for nothing (default: {BY_REWARDS})',
    )  # fmt: skip


def add_tool_options(parser: ArgumentParser) -> None:
    """Add --tools and --environment, for train, evaluate and memory."""
    parser.add_argument(
        "--tools", nargs="+", metavar="TOOL",
        help="what the model may call: FILE:function, of your own, with types and a docstring that says what each "
        "argument is; python, which runs a program in a sandbox; sqlite:FILE, which asks a database, read only",
    )  # fmt: skip
    parser.add_argument(
        "--environment", metavar="FILE:CLASS",
        help="the environment of an episode: reset(**row) begins it, get_reward(), if any, rewards it, and the other "
        "public methods are tools",
    )  # fmt: skip
