"""Greedy replies are the most likely tokens, and a chat box shows them as text."""

import pytest
import torch

from grpo_lab.chat import ChatBox, Conversation, reply
from grpo_lab.rollout import encode_prompts


def greedy_by_hand(model, tokenizer, question: str, limit: int) -> str:
    """The definition: append the most likely token until an end token or the limit."""
    ids, _ = encode_prompts(tokenizer, [[{"role": "user", "content": question}]])
    drawn = []
    while len(drawn) < limit:
        with torch.no_grad():
            token = int(model(torch.cat([ids, torch.tensor([drawn], dtype=torch.long)], dim=1)).logits[0, -1].argmax())
        if token in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            break
        drawn.append(token)
    return tokenizer.decode(drawn, skip_special_tokens=True)


@pytest.mark.parametrize("question", ["10+20+30=?", "2+2", "czq是谁"])
def test_a_reply_is_the_most_likely_token_at_every_step(tiny, question):
    model, tokenizer = tiny
    assert reply(model, tokenizer, question, 24) == greedy_by_hand(model, tokenizer, question, 24)


def test_a_reply_ignores_and_restores_the_checkpoints_settings_and_the_mode(tiny):
    model, tokenizer = tiny
    plain = reply(model, tokenizer, "10+20+30=?", 24)
    model.generation_config.repetition_penalty = 5.0
    model.train()
    try:
        assert reply(model, tokenizer, "10+20+30=?", 24) == plain
        assert model.training and model.generation_config.repetition_penalty == 5.0
    finally:
        model.generation_config.repetition_penalty = None
        model.eval()


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_reply_in_training_mode_with_gradient_checkpointing_is_that_of_evaluation_mode(tiny, temperature):
    """The state in which S0 chats. There plain `generate` answers otherwise: see tests/rollout/test_prompts.py."""
    model, tokenizer = tiny

    def replies():
        torch.manual_seed(0)
        talk = Conversation(model, tokenizer, max_new_tokens=24, temperature=temperature)
        single = [reply(model, tokenizer, question, 24, temperature) for question in ("10+20+30=?", "czq是谁")]
        return [*single, talk.ask("10+20+30=?"), talk.ask("2+2")]

    expected = replies()
    model.gradient_checkpointing_enable()
    model.train()
    assert replies() == expected
    assert model.training and model.is_gradient_checkpointing
    ids, mask = encode_prompts(tokenizer, [[{"role": "user", "content": "10+20+30=?"}]])
    plain = model.generate(ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=24)[0, ids.shape[1] :]
    model.eval()
    assert tokenizer.decode(plain, skip_special_tokens=True) != reply(model, tokenizer, "10+20+30=?", 24)


def test_a_message_list_is_taken_as_it_is(tiny):
    model, tokenizer = tiny
    messages = [{"role": "user", "content": "10+20+30=?"}]
    assert reply(model, tokenizer, messages, 24) == reply(model, tokenizer, "10+20+30=?", 24)


def test_the_limit_has_to_be_positive(tiny):
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        reply(*tiny, "2+2", 0)


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_a_temperature_is_a_number_from_0(tiny, temperature):
    with pytest.raises(ValueError, match="temperature is"):
        reply(*tiny, "2+2", 4, temperature)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("question", ["10+20+30=?", "czq是谁", "你好"])
def test_the_pieces_are_the_reply_and_never_half_a_letter(tiny, question, temperature):
    pieces = []
    torch.manual_seed(1)
    whole = reply(*tiny, question, 48, temperature, write=pieces.append)
    assert "".join(pieces) == whole and len(pieces) > 1
    assert not any(piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces[:-1])


def drawn_by_hand(model, tokenizer, question: str, limit: int, temperature: float) -> str:
    """The definition: append a token drawn from the softmax of all logits over the temperature."""
    ids, _ = encode_prompts(tokenizer, [[{"role": "user", "content": question}]])
    drawn = []
    while len(drawn) < limit and (tokenizer.eos_token_id not in drawn):
        with torch.no_grad():
            logits = model(torch.cat([ids, torch.tensor([drawn], dtype=torch.long)], dim=1)).logits[0, -1]
        drawn.append(int(torch.multinomial((logits / temperature).softmax(-1)[None], 1)))
    return tokenizer.decode(drawn, skip_special_tokens=True)


def test_with_a_temperature_tokens_are_drawn_from_all_of_the_policy(tiny):
    seen = set()
    for seed in range(4):
        torch.manual_seed(seed)
        want = drawn_by_hand(*tiny, "10+20+30=?", 12, 1.5)
        torch.manual_seed(seed)
        assert reply(*tiny, "10+20+30=?", 12, 1.5) == want
        seen.add(want)
    assert len(seen) > 1


def test_the_box_asks_every_policy_and_escapes_what_they_say(tiny, monkeypatch):
    pytest.importorskip("ipywidgets")
    model, tokenizer = tiny
    box = ChatBox({"before": model, "after": model}, tokenizer, 24)
    box._line.value = "  10+20+30=?  "
    box._button.click()
    ((question, replies),) = box.turns
    assert question == "10+20+30=?" and box._line.value == "" and not box._button.disabled
    assert replies == dict.fromkeys(("before", "after"), reply(model, tokenizer, "10+20+30=?", 24))
    monkeypatch.setattr("grpo_lab.chat.box.reply", lambda *_: "<script>alert(1)</script>")
    box.ask("<b>")
    assert "<script>" not in box.html() and "&lt;b&gt;" in box.html() and "&lt;script&gt;" in box.html()
    assert box._shown.value == box.html()


def test_a_blank_line_asks_nothing_and_no_policy_is_an_error(tiny):
    pytest.importorskip("ipywidgets")
    box = ChatBox({"before": tiny[0]}, tiny[1])
    box._line.value = "   "
    box.send()
    assert box.turns == []
    with pytest.raises(ValueError, match="policies is empty"):
        ChatBox({}, tiny[1])
