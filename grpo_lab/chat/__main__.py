"""`python -m grpo_lab.chat --model DIR`: a conversation in a shell; or one question, or one a line from a pipe."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator

from grpo_lab.chat.conversation import Conversation
from grpo_lab.checks import check_at_least, check_between, check_finite
from grpo_lab.commands import Parser, command
from grpo_lab.config.ranges import LARGEST_SEED
from grpo_lab.precision import PRECISIONS

HELP = """\
/new    begin a new conversation: all that was said is forgotten
/quit   leave; so does the end of the input (Ctrl-D, or Ctrl-Z and Enter on Windows)
/help   this
Ctrl-C stops a reply; that question is forgotten. Everything else is a question."""


@command("grpo_lab.chat")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    _check(args)
    import torch

    from grpo_lab.models import load_policy, one_thread_if_small

    with contextlib.redirect_stdout(sys.stderr):  # stdout has the replies alone
        model, tokenizer = load_policy(args.model, args.device, args.precision)
        one_thread_if_small(model)
    if args.seed is not None:
        torch.manual_seed(args.seed)
    talk = Conversation(model, tokenizer, args.system, args.max_new_tokens, args.temperature)
    if args.prompt is not None:
        answer(talk, args.prompt)
    elif sys.stdin.isatty():
        converse(talk)
    else:
        answer_lines(talk)


def converse(talk: Conversation) -> None:
    """Ask for questions until the reader leaves."""
    with contextlib.suppress(ImportError):  # Windows has none, and needs none: its console edits lines by itself
        import readline  # noqa: F401
    print("Ask something. /help says what else there is.")
    while True:
        try:
            line = input("\nyou: ")
        except EOFError:
            print()
            return
        try:
            if act(talk, line):
                return
        except KeyboardInterrupt:
            print("\n(stopped, and forgotten)")
        except ValueError as error:  # such as a question that is too long: there may be a shorter one
            print(f"({error})")


def answer_lines(talk: Conversation) -> None:
    """Take questions from a pipe, one a line, until its end."""
    for number, line in enumerate(_lines(), 1):
        try:
            if act(talk, line, f"line {number}: "):
                return
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def act(talk: Conversation, line: str, where: str = "") -> bool:
    """Do what a line says; whether it says to leave.

    where: what precedes a message about the line.
    """
    line = line.strip()
    if not re.fullmatch(r"/\w+", line):
        if line:
            answer(talk, line)
        return False
    if line == "/new":
        talk.clear()
    elif line != "/quit":
        unknown = "" if line == "/help" else f"{where}{line} is not known here; expected one of\n"
        print(f"{unknown}{HELP}", file=sys.stderr if where else None)
    return line == "/quit"


def answer(talk: Conversation, question: str) -> None:
    """Print the reply, piece by piece, and what had to be forgotten for it."""
    forgotten = talk.forgotten
    talk.ask(question, write=lambda piece: print(printable(piece), end="", flush=True))
    print(flush=True)
    if new := talk.forgotten - forgotten:
        turns = "the oldest turn was" if new == 1 else f"the {new} oldest turns were"
        print(f"({turns} left out: the model has room for {talk.context} tokens)", file=sys.stderr)


def printable(text: str) -> str:
    """Without what a terminal would obey: a policy may say anything, control characters too."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def _lines() -> Iterator[str]:
    """What is piped in, as UTF-8 on every system, unless PYTHONIOENCODING says otherwise."""
    if "PYTHONIOENCODING" not in os.environ and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise ValueError(f"the input is not {error.encoding}; expected one question a line, in UTF-8") from error


def _check(args) -> None:
    check_at_least("max_new_tokens", args.max_new_tokens, 1)
    check_at_least("temperature", args.temperature, 0)
    check_finite("temperature", args.temperature)
    if args.seed is not None:
        check_between("seed", args.seed, 0, LARGEST_SEED)
    if args.prompt is not None and not args.prompt.strip():
        raise ValueError(f"prompt is {args.prompt!r}; expected a question")
    if args.prompt is None and sys.stdin is None:
        raise ValueError("prompt is missing; expected a question, since there is no input to read them from")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m grpo_lab.chat",
        description="Talk to a model. Questions come from you, from --prompt, or one a line from a pipe.",
    )
    add: Callable = parser.add_argument
    add("--model", required=True, help='a folder, a hub id, "tiny", "smollm2" or "auto"')
    add("--prompt", help="one question; its reply is printed, and that is all")
    add("--system", default="", help="what the model is told first (default: what its chat template says)")
    add("--max_new_tokens", type=int, default=256, help="a reply ends there (default 256)")
    add("--temperature", type=float, default=0.0, help="0 is greedy, 1 is how training samples (default 0)")
    add("--seed", type=int, help="of what is drawn with a temperature (default: another one each time)")
    add("--precision", choices=list(PRECISIONS), help="(default: what fits the device)")
    add("--device", help="cpu, cuda, cuda:1 or mps (default: the card, if there is one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
