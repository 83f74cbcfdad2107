"""A conversation is remembered as far as the context reaches; a shell has it from a reader, an option or a pipe."""

import io
import subprocess
import sys

import pytest

import grpo_lab.models
from grpo_lab.chat import Conversation, conversation, reply
from grpo_lab.chat import __main__ as shell
from grpo_lab.rollout import encode_prompts
from tests.support.refused import refused


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Echo:
    """Stands in for `reply`: says how many messages it was given, and keeps them."""

    def __init__(self):
        self.given = []

    def __call__(self, model, tokenizer, messages, max_new_tokens, temperature, write):
        self.given.append(messages)
        text = f"{len(messages)} heard"
        for piece in (text[:3], text[3:]) if write else ():
            write(piece)
        return text


@pytest.fixture
def echo(monkeypatch):
    stand_in = Echo()
    monkeypatch.setattr(conversation, "reply", stand_in)
    return stand_in


def test_what_was_said_is_what_the_next_reply_sees(tiny, echo):
    talk = Conversation(*tiny, system="Be brief.")
    assert [talk.ask("a"), talk.ask("b")] == ["2 heard", "4 heard"]
    told = {"role": "system", "content": "Be brief."}
    assert echo.given[1] == [told, user("a"), assistant("2 heard"), user("b")]
    talk.clear()
    talk.ask("c")
    assert echo.given[2] == [told, user("c")]


def test_the_first_reply_is_that_of_reply(tiny):
    assert Conversation(*tiny, max_new_tokens=24).ask("10+20+30=?") == reply(*tiny, "10+20+30=?", 24)


def test_the_oldest_turns_make_room_and_the_system_prompt_stays(tiny, echo):
    talk = Conversation(*tiny, system="S", max_new_tokens=10)
    for question in ("first", "second", "third"):
        talk.ask(question)
    both = [{"role": "system", "content": "S"}, user("third"), assistant("6 heard"), user("fourth")]
    talk.context = encode_prompts(tiny[1], [both])[0].shape[1] + 10
    talk.ask("fourth")
    assert echo.given[-1] == both and talk.forgotten == 2
    talk.context -= 1
    talk.ask("fourth")  # as long as before, with one token less
    assert echo.given[-1] == [both[0], user("fourth")] and talk.forgotten == 4


def test_a_question_without_room_is_refused_and_nothing_is_forgotten(tiny, echo):
    talk = Conversation(*tiny, max_new_tokens=10)
    talk.ask("first")
    talk.context = 30
    with pytest.raises(ValueError, match=r"the question is \d+ tokens long; expected at most 20: .* room for 30"):
        talk.ask("word " * 50)
    assert len(talk.turns) == 1 and talk.forgotten == 0


def test_what_was_interrupted_was_never_said(tiny, monkeypatch):
    talk = Conversation(*tiny)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(conversation, "reply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        talk.ask("a")
    assert talk.turns == []


def test_a_model_that_cannot_chat_is_refused(tiny):
    model, tokenizer = tiny
    with pytest.raises(ValueError, match="max_new_tokens is 2048; expected less than the model's 2048"):
        Conversation(model, tokenizer, max_new_tokens=2048)
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ raise_exception('no system, please') }}"
        with pytest.raises(ValueError, match="system is 'S'; .*chat template.*no system, please"):
            Conversation(model, tokenizer, "S").ask("a")
        tokenizer.chat_template = None
        with pytest.raises(ValueError, match="without a chat template"):
            Conversation(model, tokenizer)
    finally:
        tokenizer.chat_template = template


# ---- in a shell


@pytest.fixture
def loaded(tiny, monkeypatch):
    """`load_policy` gives the tiny model, without loading it again."""
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda name, device, precision: tiny)
    monkeypatch.setattr(grpo_lab.models, "one_thread_if_small", lambda model: print("said on stderr"))


def piped(monkeypatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))


def typed(monkeypatch, *lines) -> None:
    """A reader at a terminal; an exception is what they press."""
    left = list(lines)

    def read(prompt):
        if not left:
            raise EOFError
        if isinstance(left[0], type):
            raise left.pop(0)
        return left.pop(0)

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)


def test_one_question_one_reply(loaded, tiny, capsys):
    assert shell.main(["--model", "tiny", "--prompt", "10+20+30=?", "--max_new_tokens", "24"]) == 0
    captured = capsys.readouterr()
    assert captured.out == reply(*tiny, "10+20+30=?", 24) + "\n" and captured.err == "said on stderr\n"


def test_a_seed_repeats_what_is_drawn(loaded, capsys):
    options = ["--model", "tiny", "--prompt", "2+2", "--max_new_tokens", "12", "--temperature", "2", "--seed"]
    said = []
    for seed in ("3", "3", "4"):
        shell.main([*options, seed])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_from_a_pipe_comes_one_question_a_line_in_utf8(loaded, echo, monkeypatch, capsys):
    piped(monkeypatch, "\ufeffczq是谁\r\n\n你好 \n/new\n/etc/hosts\n/quit\nnever".encode())
    assert shell.main(["--model", "tiny"]) == 0
    assert capsys.readouterr().out == "1 heard\n3 heard\n1 heard\n"
    assert [messages[-1]["content"] for messages in echo.given] == ["czq是谁", "你好", "/etc/hosts"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"\xff\xfe", "the input is not utf-8; expected one question a line, in UTF-8"),
        (b"\n\n" + b"word " * 2000, "line 3: the question is 8019 tokens long"),
    ],
)
def test_a_pipe_that_cannot_be_answered_is_an_error(loaded, monkeypatch, text, want):
    monkeypatch.setattr(grpo_lab.models, "one_thread_if_small", lambda model: None)
    piped(monkeypatch, text)
    assert want in refused(shell.main, "--model", "tiny")


def test_without_any_input_there_has_to_be_a_question(loaded, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "--prompt is missing; expected a question" in refused(shell.main, "--model", "tiny")


def test_a_reader_asks_begins_anew_and_leaves(loaded, echo, monkeypatch, capsys):
    typed(monkeypatch, "a", " ", "b", "/new", "c", "/help", "/nwe", "/quit", "never")
    assert shell.main(["--model", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.endswith("heard")] == ["1 heard", "3 heard", "1 heard"]
    assert printed.count(shell.HELP) == 2 and "/nwe is not known here; expected one of" in printed


def test_the_end_of_the_input_leaves_and_ctrl_c_at_the_prompt_too(loaded, echo, monkeypatch, capsys):
    typed(monkeypatch, "a")
    assert shell.main(["--model", "tiny"]) == 0
    typed(monkeypatch, "a", KeyboardInterrupt)
    assert shell.main(["--model", "tiny"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_stops_a_reply_and_a_question_that_is_too_long_ends_nothing(loaded, monkeypatch, capsys):
    acts = iter([KeyboardInterrupt(), ValueError("the question is 9 tokens long"), "fine"])

    def ask(self, question, write):
        if isinstance(act := next(acts), BaseException):
            raise act
        write(act)

    monkeypatch.setattr(Conversation, "ask", ask)
    typed(monkeypatch, "a", "b", "c")
    assert shell.main(["--model", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert "(stopped, and forgotten)" in printed and "(the question is 9 tokens long)" in printed and "fine" in printed


def test_what_had_to_be_forgotten_is_said(tiny, echo, capsys):
    talk = Conversation(*tiny, max_new_tokens=10)
    for question in ("a", "b", "c"):
        talk.ask(question)
    talk.context = 40
    shell.answer(talk, "d")
    assert "turns were left out: the model has room for 40 tokens)" in capsys.readouterr().err


def test_a_terminal_obeys_nothing_that_a_policy_says():
    assert shell.printable("\x1b[2Ja\tb\n谁\x07\x9b") == "�[2Ja\tb\n谁��"


@pytest.mark.slow
def test_in_a_process_of_its_own():
    command = [sys.executable, "-m", "grpo_lab.chat", "--model", "tiny", "--max_new_tokens", "24"]
    done = subprocess.run(command, input="czq是谁\n10+20+30=?\n".encode(), capture_output=True)
    assert done.returncode == 0 and "我不知道。\n" in done.stdout.decode() and b"Traceback" not in done.stderr
