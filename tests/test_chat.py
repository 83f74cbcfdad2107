"""Greedy replies are the most likely tokens; the next reply of a conversation gets all earlier messages."""

import pytest
import torch

import grpo_lab.models
from grpo_lab import chat
from grpo_lab.base.checks import InputError
from grpo_lab.chat import reply
from grpo_lab.rollout import encode_prompts


def by_hand(model, tokenizer, question: str, limit: int, temperature: float) -> str:
    """The reply by its definition: append the most likely token, or one drawn from softmax(logits / temperature)."""
    ids, _ = encode_prompts(tokenizer, [[{"role": "user", "content": question}]])
    seeds: list[int] = []
    while len(seeds) < limit and not {tokenizer.eos_token_id, tokenizer.pad_token_id} & set(seeds):
        with torch.no_grad():
            logits = model(torch.cat([ids, torch.tensor([seeds], dtype=torch.long)], dim=1)).logits[0, -1]
        if temperature:
            seeds.append(int(torch.multinomial((logits / temperature).softmax(-1)[None], 1)))
        else:
            seeds.append(int(logits.argmax()))
    return tokenizer.decode(seeds, skip_special_tokens=True)


def test_a_reply_is_the_most_likely_token_at_every_step(tiny):
    for question in ("10+20+30=?", "2+2", "czq是谁"):
        assert reply(*tiny, question, 24) == by_hand(*tiny, question, 24, 0)
    assert reply(*tiny, [{"role": "user", "content": "2+2"}], 24) == reply(*tiny, "2+2", 24)


def test_with_a_temperature_tokens_are_drawn_from_all_of_the_policy(tiny):
    seen = set()
    for seed in range(4):
        torch.manual_seed(seed)
        expected = by_hand(*tiny, "10+20+30=?", 12, 1.5)
        torch.manual_seed(seed)
        assert reply(*tiny, "10+20+30=?", 12, 1.5) == expected
        seen.add(expected)
    assert len(seen) > 1


def test_chat_replies_are_the_same_in_training_mode(tiny):
    """A notebook chats during training in this mode; `generate` alone would give another reply."""
    model, tokenizer = tiny

    def replies():
        torch.manual_seed(0)
        return [reply(model, tokenizer, "10+20+30=?", 24, temperature) for temperature in (0.0, 1.5)]

    expected = replies()
    model.gradient_checkpointing_enable()
    model.train()
    model.generation_config.repetition_penalty = 5.0  # a setting of the checkpoint, which `reply` ignores
    assert replies() == expected
    assert model.training and model.is_gradient_checkpointing and model.generation_config.repetition_penalty == 5.0
    model.generation_config.repetition_penalty = None
    model.eval()


def test_the_pieces_are_the_reply_and_never_half_a_letter(tiny):
    for question in ("10+20+30=?", "czq是谁", "你好"):
        pieces: list[str] = []
        torch.manual_seed(1)
        whole = reply(*tiny, question, 48, 2.0, write=pieces.append)
        assert "".join(pieces) == whole and len(pieces) > 1
        if "\N{REPLACEMENT CHARACTER}" not in whole:
            assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def message_of(role, text):
    return {"role": role, "content": text}


@pytest.fixture
def recorded_prompts(monkeypatch):
    """Replace `reply` by the number of messages, or by the next exception; return the prompts and the exceptions."""
    prompts, faults = [], []

    def echo(model, tokenizer, messages, max_new_tokens, temperature, write):
        prompts.append(messages)
        if faults:
            raise faults.pop(0)
        write(f"{len(messages)} heard")
        return f"{len(messages)} heard"

    monkeypatch.setattr(chat, "reply", echo)
    return prompts, faults


def test_wrong_settings_and_a_model_that_cannot_chat_are_refused(tiny):
    model, tokenizer = tiny
    with pytest.raises(ValueError, match=r"prompt has \d+ tokens and max_new_tokens is 2048; together .* at most 2048"):
        reply(*tiny, "2+2", 2048)
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        reply(*tiny, "2+2", 0)
    for temperature in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="temperature is"):
            reply(*tiny, "2+2", 4, temperature)
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ raise_exception('no system, please') }}"
        with pytest.raises(ValueError, match="chat template.*no system, please"):
            reply(model, tokenizer, "a")
        tokenizer.chat_template = None
        with pytest.raises(ValueError, match="no chat_template: take plain text, .* with `--chat_template none`"):
            reply(model, tokenizer, [message_of("user", "a")])
    finally:
        tokenizer.chat_template = template


# ---- in a shell


@pytest.fixture
def loaded(tiny, monkeypatch):
    """Let `load_policy` return the tiny model without loading it again."""
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda name: tiny)
    monkeypatch.setattr(grpo_lab.models, "one_thread_if_tiny", lambda model: None)


def type_lines(monkeypatch, *lines) -> None:
    """A reader at a terminal; an exception is what they press."""
    remaining = iter(lines)

    def read(prompt):
        line = next(remaining, EOFError)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)


def test_chat_command_answers_one_question_with_one_reply(loaded, tiny, capsys):
    assert chat.main(["--model", "tiny", "--prompt", "10+20+30=?", "--max_new_tokens", "24"]) == 0
    assert capsys.readouterr().out == reply(*tiny, "10+20+30=?", 24) + "\n"


def test_without_a_template_a_text_is_continued_as_it_is_typed(loaded, tiny, monkeypatch, capsys):
    monkeypatch.setattr(tiny[1], "chat_template", tiny[1].chat_template)  # put back at the end
    type_lines(monkeypatch, "10+20=", "and")
    assert chat.main(["--model", "tiny", "--max_new_tokens", "8", "--chat_template", "none"]) == 0
    first = reply(*tiny, "10+20=", 8)
    expected = f"{chat.HELP}\n{first}\n" + reply(*tiny, f"10+20=\n\n{first}\n\nand", 8) + "\n"
    assert tiny[1].chat_template is None and capsys.readouterr().out == expected


def test_a_chat_starts_again_and_forgets_stopped_messages(loaded, recorded_prompts, monkeypatch, capsys):
    prompts, faults = recorded_prompts
    type_lines(monkeypatch, "a", " ", "b", "/new", "c", "/quit", "never")
    assert chat.main(["--model", "tiny", "--system", "S"]) == 0
    printed = capsys.readouterr().out
    assert prompts[1] == [
        message_of("system", "S"),
        message_of("user", "a"),
        message_of("assistant", "2 heard"),
        message_of("user", "b"),
    ]
    assert [line for line in printed.splitlines() if line.endswith("heard")] == ["2 heard", "4 heard", "2 heard"]
    assert printed.count(chat.HELP) == 1
    faults += [KeyboardInterrupt(), InputError("prompt has 9 tokens")]
    type_lines(monkeypatch, "a", "b", "c")
    assert chat.main(["--model", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert "(stopped, and forgotten)" in printed and "(prompt has 9 tokens)" in printed and "1 heard" in printed
    assert prompts[-1] == [message_of("user", "c")]
    type_lines(monkeypatch, "a", KeyboardInterrupt)
    assert chat.main(["--model", "tiny"]) == 130


def test_control_characters_of_a_reply_are_replaced_in_the_terminal():
    assert chat.printable("\x1b[2Ja\tb\n谁\x07\x9b") == "�[2Ja\tb\n谁��"
