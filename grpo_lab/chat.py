"""Talk to a policy: one reply, and `python -m grpo_lab.chat --model DIR` in a shell.

Replies are greedy unless a temperature is given: before and after training you want to see what the policy thinks best,
and not what it happened to draw. What needs transformers is imported when it is used, so that --help is quick.
"""

import contextlib
import re
import sys
from collections.abc import Callable

import torch

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError, check_at_least, check_finite

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
    from grpo_lab.rollout.fast_paths import context_length
    from grpo_lab.rollout.prompts import set_aside_generation_config

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
    from grpo_lab.models import load_policy, one_thread_if_small
    from grpo_lab.rollout.tools.named import load_agent
    from grpo_lab.tasks import as_text

    tools = load_agent(args.tools, None).get("tools")  # before a model is loaded
    with contextlib.redirect_stdout(sys.stderr):  # stdout has the replies alone
        model, tokenizer = load_policy(args.model)
        one_thread_if_small(model)
    if is_plain := args.chat_template == "none":
        tokenizer.chat_template = None

    def write(piece: str) -> None:
        print(printable(piece), end="", flush=True)

    def answer(messages: list[dict]) -> str:
        prompt = as_text(messages) if is_plain else messages
        text = reply(model, tokenizer, prompt, args.max_new_tokens, args.temperature, write)
        print(flush=True)
        return text

    if tools:
        answer = _with_tools(model, tokenizer, tools, args.max_new_tokens, args.temperature)
    system_messages = [{"role": "system", "content": args.system}] if args.system else []
    if args.prompt is None:
        converse(answer, system_messages)
    else:
        answer([*system_messages, {"role": "user", "content": args.prompt}])


def _with_tools(model, tokenizer, tools: list[Callable], max_new_tokens: int, temperature: float) -> Callable:
    """A function that answers with tools: it prints the turns, what tools say between angle quotation marks."""
    from grpo_lab.rollout.tools import ToolEnvironment
    from grpo_lab.trainer.reports import in_turns, turn_texts

    environment = ToolEnvironment(tools)
    sampling: dict = {"temperature": temperature} if temperature else {"top_k": 1}

    def answer(messages: list[dict]) -> list[dict]:
        rows = [{"prompt": messages}]
        environment.check(model, tokenizer, rows, max_new_tokens)
        rollout = environment.sample(model, tokenizer, rows, 1, max_new_tokens, **sampling)
        print(printable(in_turns(turn_texts(rollout, tokenizer)[0])), flush=True)
        (episode,) = rollout.episodes
        return episode.messages

    return answer


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
    add("--max_new_tokens", type=int, default=256, help="a reply ends there (default 256)")
    add("--temperature", type=float, default=0.0, help="0 is greedy, 1 is how training samples (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
