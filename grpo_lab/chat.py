"""Talk to a policy: the function `reply`, and the command `python -m grpo_lab.chat --model DIR`.

Replies are greedy unless a temperature is given: to compare a policy before and after training, you want to see its
most likely tokens, not random ones. Modules that need transformers are imported when they are used, so that --help is
quick.
"""

import contextlib
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError, check_at_least, check_finite
from grpo_lab.command_options import add_options
from grpo_lab.config.settings import SamplingParams
from grpo_lab.task_spec import TaskSpec, make_task_spec
from grpo_lab.tasks import as_text
from grpo_lab.tasks.data_options import DATA_OPTION_NAMES, DATA_OPTIONS

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
    """Return the policy's reply to a prompt, without special tokens.

    Args:
        model, tokenizer: The policy and its tokenizer, as `load_policy` returns them.
        prompt: A list of chat messages, or a text. A text is the user's message if the tokenizer has a chat template;
            else the model continues it as it is.
        max_new_tokens: Maximum number of tokens of the reply.
        temperature: Temperature of sampling; 0 takes the most likely token at every step.
        write: A function that gets each piece of the reply as soon as it is generated.

    Raises:
        InputError: if a setting is out of its range, or if the prompt leaves no room in the context.
    """
    from transformers import GenerationConfig, TextStreamer

    from grpo_lab.rollout import encode_prompts, end_token_ids, evaluation_mode, pad_token_id
    from grpo_lab.rollout.model import context_length, set_aside_generation_config

    _check_settings(max_new_tokens, temperature)
    if isinstance(prompt, str) and tokenizer.chat_template is not None:
        prompt = [{"role": "user", "content": prompt}]
    ids, mask = (x.to(model.device) for x in encode_prompts(tokenizer, [prompt]))
    context = context_length(model.config) or sys.maxsize
    if ids.shape[1] + max_new_tokens > context:
        limit = f"together they must be at most {context}, the model's context"
        lengths = f"has {ids.shape[1]} tokens and max_new_tokens is {max_new_tokens}"
        raise InputError("prompt", prompt, limit, problem=lengths)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    special_ids = {"eos_token_id": end_token_ids(model, tokenizer), "pad_token_id": pad_token_id(tokenizer)}
    settings = GenerationConfig(**sampling, **special_ids, max_new_tokens=max_new_tokens)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    streamer.on_finalized_text = lambda text, stream_end=False: write(text) if write else None
    # Penalties of the checkpoint's generation configuration would change the reply.
    with evaluation_mode(model), set_aside_generation_config(model):
        sequence = model.generate(ids, attention_mask=mask.long(), generation_config=settings, streamer=streamer)[0]
    return tokenizer.decode(sequence[ids.shape[1] :], skip_special_tokens=True)


@command("grpo_lab.chat")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    _check_settings(args.max_new_tokens, args.temperature)
    if args.problem is not None and args.task is None:
        raise InputError("problem", args.problem, "name the task that it is one of (--task)")
    chat = _load_chat(args)
    if args.prompt is not None:
        chat.answer([*chat.system_messages, {"role": "user", "content": args.prompt}])
    elif chat.row:
        messages = chat.row["prompt"]
        print(f"you: {printable(messages[-1]['content'])}")
        chat.answer(messages)
    else:
        converse(chat.answer, chat.system_messages)


def _find_problem(args: Namespace, for_bundled_model: bool) -> tuple[TaskSpec, dict]:
    """Return the task of --task, and the columns of its problem --problem.

    The prompt of the problem has the system prompt of training or of --system.
    """
    number = 1 if args.problem is None else args.problem
    check_at_least("problem", number, 1)
    data_options = {name: getattr(args, name) for name in DATA_OPTION_NAMES}
    system = {"system_prompt": args.system} if args.system else {}
    task_spec = make_task_spec(args.task, for_bundled_model=for_bundled_model, **system, **data_options)
    rows = task_spec.task.rows("train")
    if number > len(rows):
        raise InputError("problem", number, f"it must be at most {len(rows)}, the problems of {args.task}")
    (row,) = task_spec.with_system(rows[number - 1 : number])
    return task_spec, row


def _load_chat(args: Namespace) -> "_Chat":
    """Load the task, the environment and the model of a chat; these are checked before the model is loaded."""
    from grpo_lab.models import load_policy, one_thread_if_tiny
    from grpo_lab.models.folders import find_model
    from grpo_lab.models.loading import ModelWithoutWeights, load_config_and_tokenizer
    from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment

    with contextlib.redirect_stdout(sys.stderr):  # only the replies go to stdout
        files = find_model(args.model)
    task_spec, row = (None, {}) if args.task is None else _find_problem(args, files.is_bundled)
    environment = make_environment(
        None if task_spec is None else task_spec.task,
        tools=load_tools(args.tools),
        environment_factory=load_environment_class(args.environment),
    )
    row_name = "task" if row else "row without --task"
    has_plain_prompts = args.chat_template == "none"
    if environment is not None:
        messages = row["prompt"] if row and not args.prompt else [{"role": "user", "content": args.prompt or "?"}]
        rows = [row | {"prompt": as_text(messages) if has_plain_prompts else messages}]
        model_config, tokenizer = load_config_and_tokenizer(files)
        environment.check(ModelWithoutWeights(model_config), tokenizer, rows, args.max_new_tokens, row_name)
    with contextlib.redirect_stdout(sys.stderr):
        model, tokenizer = load_policy(files)
        one_thread_if_tiny(model)
    if has_plain_prompts:
        tokenizer.chat_template = None
    if row:
        system_messages = row["prompt"][:-1]
    else:
        system_messages = [{"role": "system", "content": args.system}] if args.system else []
    # The rewards of a task are for its own problem, in its own environment.
    has_other_prompt_or_environment = args.prompt is not None or args.tools or args.environment
    return _Chat(
        model=model,
        tokenizer=tokenizer,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        has_plain_prompts=has_plain_prompts,
        environment=environment,
        row=row,
        row_name=row_name,
        system_messages=system_messages,
        forgets_questions=args.environment is not None,
        rewarded_task=None if has_other_prompt_or_environment else task_spec,
    )


@dataclass(frozen=True)
class _Chat:
    """Answers questions by replies of the policy, or by episodes if there is an environment, and prints them."""

    model: Any
    tokenizer: Any
    max_new_tokens: int
    temperature: float
    has_plain_prompts: bool  # True gives the policy plain text, without a chat template
    environment: Any  # None without one
    row: dict  # columns of the problem, which the environment gets; empty without a problem
    row_name: str  # name of the row in errors
    system_messages: list[dict]  # messages before the first question
    forgets_questions: bool  # True if each question begins a new episode, without the earlier questions
    rewarded_task: TaskSpec | None  # the task whose rewards are printed; None prints the environment's own

    def answer(self, messages: list[dict]) -> str | list[dict]:
        """Answer the last message; return the reply, or the messages of the episode if the environment has any."""
        return self._reply(messages) if self.environment is None else self._play(messages)

    def _prompt(self, messages: list[dict]) -> str | list[dict]:
        return as_text(messages) if self.has_plain_prompts else messages

    def _reply(self, messages: list[dict]) -> str:
        def write(piece: str) -> None:
            print(printable(piece), end="", flush=True)

        prompt = self._prompt(messages)
        text = reply(self.model, self.tokenizer, prompt, self.max_new_tokens, self.temperature, write)
        print(flush=True)
        return text

    def _play(self, messages: list[dict]) -> str | list[dict]:
        """Play an episode; print its turns (the environment's text in angle quotation marks), calls and reward.

        Returns:
            The messages of the episode, or its text if the environment has no messages.
        """
        from grpo_lab.rollout.rollout import turns_as_text

        if self.forgets_questions:
            messages = [*self.system_messages, messages[-1]]
        row = self.row | {"prompt": self._prompt(messages)}
        distribution = {"temperature": self.temperature} if self.temperature else {"top_k": 1}
        sampling_params = SamplingParams(1, self.max_new_tokens, **distribution)
        self.environment.check(self.model, self.tokenizer, [row], self.max_new_tokens, self.row_name)
        rollout = self.environment.sample(self.model, self.tokenizer, [row], sampling_params)
        (episode,) = rollout.episodes
        if episode.prompt is not None:
            observation = episode.prompt[-1]["content"].removeprefix(row["prompt"][-1]["content"])
            print(printable(turns_as_text([{"environment": observation}])))
        turns = rollout.turn_texts(self.tokenizer)[0]
        print(printable(turns_as_text(_without_end_tokens(turns, self.model, self.tokenizer))))
        if rollout.truncated[0]:
            print(f"(cut: no room left in {self.max_new_tokens} tokens, --max_new_tokens)")
        print(f"calls: {episode.num_calls}" + f", of which {episode.num_failures} failed" * bool(episode.num_failures))
        if self.rewarded_task is not None:
            print(_reward_line(rollout, row, self.rewarded_task))
        elif self.environment.has_reward:
            print(f"reward: {'none' if episode.reward is None else f'{episode.reward:g}'}")
        sys.stdout.flush()
        return rollout.texts[0] if episode.messages is None else episode.messages


def _without_end_tokens(turns: list[dict[str, str]], model, tokenizer) -> list[dict[str, str]]:
    """Remove the end tokens at the end of the policy's turns."""
    from grpo_lab.rollout import end_token_ids

    end_tokens = tuple(tokenizer.decode([token]) for token in end_token_ids(model, tokenizer))
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, end_tokens))})$")
    return [{"policy": pattern.sub("", turn["policy"])} if "policy" in turn else turn for turn in turns]


def _reward_line(rollout, row: dict, task_spec: TaskSpec) -> str:
    """Describe the reward of an episode, in total and by function: "reward: 1.1 (accuracy 1, format 1)"."""
    from grpo_lab.trainer.rewarding import reward_rollout

    rewards = reward_rollout(rollout, [row], task_spec.reward_funcs, task_spec.reward_weights)
    values = zip(task_spec.reward_names, rewards.rewards_per_func[0].tolist(), strict=True)
    return f"reward: {rewards.total.item():g} ({', '.join(f'{name} {value:g}' for name, value in values)})"


def converse(answer: Callable[[list[dict]], str | list[dict]], system_messages: list[dict]) -> None:
    """Read questions from the terminal and answer them, until /quit.

    A question whose answer is interrupted, or ends in an InputError, is not kept in the conversation.

    answer: A function that gets the messages so far, prints the answer to the last one and returns it: a text, or the
        messages of an episode.
    system_messages: The messages at the beginning of each conversation.
    """
    print(HELP)
    with contextlib.suppress(ImportError):  # Windows has no readline, but its console edits lines itself
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
    """Replace each control character by a replacement character: a policy may write any."""
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
    add("--prompt", help="one question: print its reply and exit")
    add("--system", default="", help="what the model is told first (default: what its chat template says)")
    template_help = (
        '"none": the model continues your text as it is typed, which a base model needs (default: model, its own)'
    )
    add("--chat_template", default="model", choices=("model", "none"), help=template_help)
    tools_help = "what it may call: FILE:function, python or sqlite:FILE; results are printed in angle quotation marks"
    add("--tools", nargs="+", metavar="TOOL", help=tools_help)
    environment_help = (
        "the environment that it plays in, started again for each question; its reward is printed at the end"
    )
    add("--environment", metavar="FILE:CLASS", help=environment_help)
    task_help = "a problem of this task in place of --prompt, in the task's own environment if it has one"
    add("--task", metavar="TASK", help=f"{task_help}; with --prompt, the columns for the environment")
    add("--problem", type=int, metavar="N", help="number of a problem in its training split (default: 1, the first)")
    add("--max_new_tokens", type=int, default=256, help="maximum number of tokens of a reply (default: %(default)s)")
    add("--temperature", type=float, default=0.0, help="0 is greedy, 1 is how training samples (default: %(default)g)")
    add_options(parser, DATA_OPTIONS.values())
    return parser


if __name__ == "__main__":
    sys.exit(main())
