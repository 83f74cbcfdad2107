"""Talk to a policy: one reply, and `python -m grpo_lab.chat --model DIR` in a shell.

Replies are greedy unless a temperature is given: before and after training you want to see what the policy thinks best,
and not what it happened to draw. What needs transformers is imported when it is used, so that --help is quick.
"""

import contextlib
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError, check_at_least, check_finite
from grpo_lab.config.defaults import FEW_PARAMETERS
from grpo_lab.task_options import add_data_options

if TYPE_CHECKING:
    from grpo_lab.task_spec import TaskSpec

HELP = "Ask something. /new forgets all that was said, /quit leaves, Ctrl-C stops a reply."


@torch.no_grad()
def reply(
    model,
    tokenizer,
    prompt: str | list[dict],
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    write: Callable[[str], object] | None = None,
) -> str:
    """The policy's reply, without special tokens.

    prompt: what the user says, which is continued as it stands if the tokenizer has no chat template; or a list of chat
        messages.
    temperature: 0 takes the most likely token at every step; above, tokens are drawn, as they are in training.
    write: is given each piece of the reply as soon as it is there; together they are the reply.
    """
    from transformers import GenerationConfig, TextStreamer

    from grpo_lab.rollout import encode_prompts, end_token_ids, evaluating, pad_token_id
    from grpo_lab.rollout.forward.fast_paths import context_length
    from grpo_lab.rollout.forward.modes import set_aside_generation_config

    _check_settings(max_new_tokens, temperature)
    if isinstance(prompt, str) and tokenizer.chat_template is not None:
        prompt = [{"role": "user", "content": prompt}]
    ids, mask = (x.to(model.device) for x in encode_prompts(tokenizer, [prompt]))
    context = context_length(model.config) or sys.maxsize
    if ids.shape[1] + max_new_tokens > context:
        limit = f"together they must be at most {context}, the model's context"
        lengths = f"has {ids.shape[1]} tokens and max_new_tokens is {max_new_tokens}"
        raise InputError("prompt", prompt, limit, found=lengths)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    ends = {"eos_token_id": end_token_ids(model, tokenizer), "pad_token_id": pad_token_id(tokenizer)}
    settings = GenerationConfig(**sampling, **ends, max_new_tokens=max_new_tokens)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    streamer.on_finalized_text = lambda text, stream_end=False: write(text) if write else None
    with evaluating(model), set_aside_generation_config(model):  # its penalties would change the reply
        sequence = model.generate(ids, attention_mask=mask.long(), generation_config=settings, streamer=streamer)[0]
    return tokenizer.decode(sequence[ids.shape[1] :], skip_special_tokens=True)


@command("grpo_lab.chat")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    _check_settings(args.max_new_tokens, args.temperature)
    if args.problem is not None and args.task is None:
        raise InputError("problem", args.problem, "name the task that it is one of (--task)")
    from grpo_lab.models import load_policy, one_thread_if_small, pick_device
    from grpo_lab.models.folders import count_parameters
    from grpo_lab.tasks import as_text
    from grpo_lab.trainer.inputs import check_tool_environment

    small = args.task is not None and count_parameters(args.model, pick_device().type) < FEW_PARAMETERS
    task_spec, row = (None, None) if args.task is None else _problem(args, small)
    environment = _environment(args, task_spec)
    is_plain = args.chat_template == "none"
    name = "row without --task" if row is None else "task"
    if environment is not None:  # all of this before a model is loaded
        messages = [{"role": "user", "content": args.prompt or "?"}] if row is None or args.prompt else row["prompt"]
        prompt = as_text(messages) if is_plain else messages
        check_tool_environment(environment, args.model, [(row or {}) | {"prompt": prompt}], name)
    with contextlib.redirect_stdout(sys.stderr):  # stdout has the replies alone
        model, tokenizer = load_policy(args.model)
        one_thread_if_small(model)
    if is_plain:
        tokenizer.chat_template = None

    # What comes before a question: in an environment that begins anew for each, this and no earlier question.
    before = row["prompt"][:-1] if row is not None else [{"role": "system", "content": args.system}] * bool(args.system)

    def write(piece: str) -> None:
        print(printable(piece), end="", flush=True)

    def say(messages: list[dict]) -> str:
        prompt = as_text(messages) if is_plain else messages
        text = reply(model, tokenizer, prompt, args.max_new_tokens, args.temperature, write)
        print(flush=True)
        return text

    def play(messages: list[dict]) -> str | list[dict]:
        messages = messages if args.environment is None else [*before, messages[-1]]
        prompt = as_text(messages) if is_plain else messages
        # The rewards of a task are for its own problem, in its own environment.
        rewarding = task_spec if args.prompt is None and not (args.tools or args.environment) else None
        return _play(environment, model, tokenizer, (row or {}) | {"prompt": prompt}, args, name, rewarding)

    answer = say if environment is None else play
    if row is not None and args.prompt is None:
        print(f"you: {printable(row['prompt'][-1]['content'])}")
        answer(row["prompt"])
    elif args.prompt is not None:
        answer([*before, {"role": "user", "content": args.prompt}])
    else:
        converse(answer, before)


def _problem(args: Namespace, small: bool) -> tuple["TaskSpec", dict]:
    """The task that is named, and one of its problems with the system prompt of a training, or that of --system."""
    from grpo_lab.task_spec import make_task_spec
    from grpo_lab.tasks import data_options, with_system

    number = 1 if args.problem is None else args.problem
    check_at_least("problem", number, 1)
    data = {name: getattr(args, name) for name in data_options.DATA_OPTION_NAMES}
    system = {"system_prompt": args.system} if args.system else {}
    task_spec = make_task_spec(args.task, for_tiny_model=small, **system, **data)
    rows = task_spec.task.rows("train")
    if number > len(rows):
        raise InputError("problem", number, f"it must be at most {len(rows)}, the problems of {args.task}")
    chosen = rows[number - 1 : number]
    (row,) = with_system(chosen, task_spec.system_prompt, task_spec.replaces_system_prompt)
    return task_spec, row


def _environment(args: Namespace, task_spec: "TaskSpec | None"):
    """The environment of the tools and the class that were named, else that of the task; None if there is neither."""
    from grpo_lab.rollout.environments.text_environment import task_environment
    from grpo_lab.rollout.environments.tools import ToolEnvironment
    from grpo_lab.rollout.environments.tools.named import load_environment_arguments

    if environment_arguments := load_environment_arguments(args.tools, args.environment):
        return ToolEnvironment(**environment_arguments)
    return None if task_spec is None else task_environment(task_spec.task)


def _play(
    environment, model, tokenizer, row: dict, args: Namespace, name: str, task_spec: "TaskSpec | None" = None
) -> str | list[dict]:
    """Play an episode and print its turns, what the environment says between angle quotation marks, its calls and its
    reward.

    name: of the row, in errors. task_spec: of the task whose rewards are printed, if any.

    Returns:
        The messages of the episode, or its text where the environment knows none.
    """
    from grpo_lab.rollout.environments.environment import abilities
    from grpo_lab.trainer.reports import in_turns, turn_texts

    sampling = {"temperature": args.temperature} if args.temperature else {"top_k": 1}
    environment.check(model, tokenizer, [row], args.max_new_tokens, name)
    rollout = environment.sample(model, tokenizer, [row], 1, args.max_new_tokens, **sampling)
    (episode,) = rollout.episodes
    if episode.prompt is not None:
        observation = episode.prompt[-1]["content"].removeprefix(row["prompt"][-1]["content"])
        print(printable(in_turns([{"environment": observation}])))
    print(printable(in_turns(_without_ends(turn_texts(rollout, tokenizer)[0], model, tokenizer))))
    if rollout.truncated[0]:
        print(f"(cut: no room left in {args.max_new_tokens} tokens, --max_new_tokens)")
    print(f"calls: {episode.calls}" + f", of which {episode.failures} failed" * bool(episode.failures))
    if task_spec is not None:
        print(_reward_line(rollout, row, task_spec))
    elif abilities(environment).has_reward:
        print(f"reward: {'none' if episode.reward is None else f'{episode.reward:g}'}")
    sys.stdout.flush()
    return rollout.texts[0] if episode.messages is None else episode.messages


def _without_ends(turns: list[dict[str, str]], model, tokenizer) -> list[dict[str, str]]:
    """The turns without the tokens that end those of the policy."""
    from grpo_lab.rollout import end_token_ids

    ends = tuple(tokenizer.decode([token]) for token in end_token_ids(model, tokenizer))
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, ends))})$")
    return [{"policy": pattern.sub("", turn["policy"])} if "policy" in turn else turn for turn in turns]


def _reward_line(rollout, row: dict, task_spec: "TaskSpec") -> str:
    """The reward of an episode by the task and by each of its functions: "reward: 1.1 (accuracy 1, format 1)"."""
    from grpo_lab.trainer.rewarding import reward_rollout

    rewards = reward_rollout(rollout, [row], task_spec.reward_funcs, task_spec.reward_weights)
    values = zip(task_spec.reward_names, rewards.rewards_per_func[0].tolist(), strict=True)
    return f"reward: {rewards.total.item():g} ({', '.join(f'{name} {value:g}' for name, value in values)})"


def converse(answer: Callable[[list[dict]], str | list[dict]], system_messages: list[dict]) -> None:
    """Answer a reader, whom an error does not end, until /quit. What is interrupted or refused was never said.

    answer: what it returns is a reply, or with tools the messages of one.
    """
    print(HELP)
    with contextlib.suppress(ImportError):  # Windows has none, and needs none: its console edits lines by itself
        import readline  # noqa: F401
    messages = system_messages
    with contextlib.suppress(EOFError):
        while (line := input("\nyou: ").strip()) != "/quit":
            question = [*messages, {"role": "user", "content": line}]
            if line == "/new":
                messages = system_messages
            elif line:
                try:
                    answered = answer(question)
                    replies = answered if isinstance(answered, list) else [{"role": "assistant", "content": answered}]
                    messages = [*question, *replies]
                except (KeyboardInterrupt, InputError) as error:
                    print(f"\n({str(error) or 'stopped, and forgotten'})")


def printable(text: str) -> str:
    """The text with control characters, which a policy may write, replaced."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def _check_settings(max_new_tokens: int, temperature: float) -> None:
    check_at_least("max_new_tokens", max_new_tokens, 1)
    check_at_least("temperature", temperature, 0)
    check_finite("temperature", temperature)


def _parser() -> Parser:
    description = "Talk to a model. Questions come from you, or one from --prompt."
    parser = Parser(prog="python -m grpo_lab.chat", description=description)
    add: Callable = parser.add_argument
    add("--model", required=True, help='a folder, a hub id, "tiny", "smollm2", "qwen" or "auto"')
    add("--prompt", help="one question; its reply is printed, and that is all")
    add("--system", default="", help="what the model is told first (default: what its chat template says)")
    plain = '"none" has your text continued as it is typed, as a base model needs it (default: model, its own)'
    add("--chat_template", default="model", choices=("model", "none"), help=plain)
    about = (
        "what it may call: FILE:function, python or sqlite:FILE; what that returns stands between angle quotation marks"
    )
    add("--tools", nargs="+", metavar="TOOL", help=about)
    about = "the world that it plays in, begun anew for each question, and the reward that this gives at the end"
    add("--environment", metavar="FILE:CLASS", help=about)
    about = "a problem of this task in place of --prompt, in the task's own environment if it has one and you name none"
    add("--task", metavar="TASK", help=f"{about}; with --prompt, the columns for the environment")
    add("--problem", type=int, metavar="N", help="which of its problems to train on (default 1, the first)")
    add("--max_new_tokens", type=int, default=256, help="a reply ends there (default 256)")
    add("--temperature", type=float, default=0.0, help="0 is greedy, 1 is how training samples (default 0)")
    add_data_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
