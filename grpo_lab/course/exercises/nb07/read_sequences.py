"""The exercise read_sequences: wrong answers, as people write them, then what is said about each."""

from dataclasses import replace

import torch

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, at_scale
from grpo_lab.course.exercises.nb07._tiny_tokenizer import END, PAD, STOP, TinyTokenizer
from grpo_lab.rollout import read_sequences


def _is_end(ids, eos_token_ids):
    return torch.isin(ids, torch.tensor(eos_token_ids, device=ids.device))


def _up_to_the_end(ids, eos_token_ids):
    ends = _is_end(ids, eos_token_ids).long()
    return ends.cumsum(-1) - ends == 0


def _texts(ids, mask, tokenizer, skip=True):
    return [tokenizer.decode(row[keep], skip_special_tokens=skip) for row, keep in zip(ids, mask, strict=True)]


def _read(ids, mask, eos_token_ids, tokenizer):
    return ids, mask, ~_is_end(ids, eos_token_ids).any(-1), _texts(ids, mask, tokenizer)


def retokenised(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    _, mask, truncated, texts = _read(ids, _up_to_the_end(ids, eos_token_ids), eos_token_ids, tokenizer)
    again = torch.full_like(ids, tokenizer.pad_token_id)
    for row, text in zip(again, texts, strict=True):
        new = tokenizer.encode(text, add_special_tokens=False)
        row[: len(new)] = torch.tensor(new)
    return again, mask, truncated, texts


def eos_trimmed(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _is_end(ids, eos_token_ids).long().cumsum(-1) == 0
    return _read(ids, mask, eos_token_ids, tokenizer)


def pad_is_masked(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _up_to_the_end(ids, eos_token_ids) & (ids != tokenizer.pad_token_id)
    return _read(ids, mask, eos_token_ids, tokenizer)


def by_pad_id(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    return _read(ids, ids != tokenizer.pad_token_id, eos_token_ids, tokenizer)


def prompt_kept(sequences, prompt_length, eos_token_ids, tokenizer):
    return _read(sequences, _up_to_the_end(sequences, eos_token_ids), eos_token_ids, tokenizer)


def one_end(sequences, prompt_length, eos_token_ids, tokenizer):
    ids, only = sequences[:, prompt_length:], [tokenizer.eos_token_id]
    return _read(ids, _up_to_the_end(ids, only), only, tokenizer)


def full_is_truncated(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _up_to_the_end(ids, eos_token_ids)
    return ids, mask, mask.all(-1), _texts(ids, mask, tokenizer)


def ended_for_truncated(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _up_to_the_end(ids, eos_token_ids)
    return ids, mask, _is_end(ids, eos_token_ids).any(-1), _texts(ids, mask, tokenizer)


def special_tokens_shown(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _up_to_the_end(ids, eos_token_ids)
    return ids, mask, ~_is_end(ids, eos_token_ids).any(-1), _texts(ids, mask, tokenizer, skip=False)


def whole_row_read(sequences, prompt_length, eos_token_ids, tokenizer):
    ids = sequences[:, prompt_length:]
    mask = _up_to_the_end(ids, eos_token_ids)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return ids, mask, ~_is_end(ids, eos_token_ids).any(-1), texts


def generated(label, rows, prompt_length, ends=(END,), pad=PAD):
    def build(seed: int) -> tuple[tuple, dict]:
        return (torch.tensor(rows), prompt_length, list(ends), TinyTokenizer(pad)), {}

    return Case(build, label, fixed=True)


def _drawn(seed: int) -> tuple[tuple, dict]:
    """Padded on the left with the end token, as a tokenizer without padding token is; rows cut off, or ended."""
    dice = Dice(seed)
    rows = dice.integers(5, 6, 9) + 3
    rows[:3, :2] = END
    for row, length in enumerate(dice.integers(4, 4).tolist()):
        rows[row, 4 + length :] = END
    return (rows, 4, [END, STOP], TinyTokenizer(END)), {}


def _large(dice: Dice) -> tuple:
    """300 tokens a row, padding sampled as a word among them; two rows are cut off, the others end somewhere."""
    rows = torch.tensor([PAD, 3, 4, 5, 6, 7])[dice.integers(6, 7, 337)]
    for row, length in enumerate(dice.integers(300, 5).tolist()):
        rows[row, 37 + length] = (END, STOP)[row % 2]
        rows[row, 37 + length + 1 :: 2] = (STOP, END)[row % 2]
    return rows, 37, [STOP, END], TinyTokenizer()


EXERCISE = Exercise(
    function=read_sequences,
    notebook="07",
    points=6,
    minutes=25,
    difficulty=2,
    task="Turn what `generate` returns into what training needs: the completions' tokens as they were sampled, the "
    "mask, who was cut off, and the texts for the rewards.",
    hints=(
        "The prompts are padded on the left, so that all completions begin in the same column. Which?",
        "`completion_mask` from notebook 01 does the mask, if you give it the completions and *all* the end tokens.",
        "Cut off means that no end token came. A row may be full and still end with one.",
        "Decode only what is under the mask, without special tokens. And never the other way: what is the token of "
        "'ab' if the policy sampled 'a', then 'b'?",
    ),
    cases=(
        generated("one prompt token, then 'a', 'b' and the end", [[6, 3, 4, END]], 1),
        generated("the policy sampled 'ab' in one token", [[6, 5, END, PAD]], 1),
        generated("cut off", [[6, 3, 4, 5]], 1),
        generated(
            "one ended, one cut off, one ended on the last token", [[6, 3, END, PAD], [6, 4, 3, 3], [6, 3, 3, END]], 1
        ),
        generated("something stands behind the end", [[6, 3, END, 4, 4]], 1),
        generated("padding is the end token", [[END, 6, 3, END, END], [6, 6, 4, 4, 4]], 2, pad=END),
        generated("two kinds of end", [[6, 3, STOP, PAD], [6, 4, 4, END]], 1, ends=(END, STOP)),
        generated("padding sampled as a word", [[6, 3, PAD, 4, END]], 1),
        generated("ends at once", [[6, END, PAD], [6, 3, END]], 1),
        Case(_drawn, "many rows"),
        replace(
            generated("the end token is number 0", [[6, 3, 0, 0], [6, 4, 3, 3], [6, 0, 0, 0]], 1, ends=(0,)),
            tests="stability",
        ),
        replace(generated("one row of one token", [[END, END, 6, 5]], 3, pad=END), tests="stability"),
        at_scale("300 tokens", _large),
    ),
    misconceptions=(
        Misconception(
            "retokenised",
            retokenised,
            "You decode the completion and encode the text again. The policy sampled 'a', then 'b'; the text 'ab' is "
            "one token. So you score a token that was never sampled, and lose the end token on the way. Which ids are "
            "the ones that were sampled?",
        ),
        Misconception(
            "eos-trimmed",
            eos_trimmed,
            "Your mask leaves the end token out. The policy *chose* to stop there. If that choice is never scored, "
            "stopping is never rewarded, and responses grow to the limit.",
        ),
        Misconception(
            "eos-masked-as-padding",
            pad_is_masked,
            "You mask every token that has the padding's id. Where padding *is* the end token, as in many checkpoints, "
            "the first end is masked with it, and stopping is never rewarded. Only position tells the two apart.",
        ),
        Misconception(
            "eos-by-id",
            by_pad_id,
            "Your mask asks which token stands at a position. Whatever follows the end without being padding then "
            "counts, and a padding token that was sampled does not. What decides is what came *before* the position.",
        ),
        Misconception(
            "prompt-kept",
            prompt_kept,
            "The prompt is still in there. The policy did not choose those tokens. Where do the completions begin?",
        ),
        Misconception(
            "one-end-only",
            one_end,
            "You look for the tokenizer's end token alone. Chat models end a turn with another one; then every "
            "response seems to have been cut off. `eos_token_ids` lists them all.",
        ),
        Misconception(
            "full-is-truncated",
            full_is_truncated,
            "You call a row truncated if it is full. It may have ended on its very last token: that response is "
            "complete.",
        ),
        Misconception(
            "ended-for-truncated",
            ended_for_truncated,
            "`truncated` is the wrong way round: True where an end token came. It should be True where none did.",
        ),
        Misconception(
            "special-tokens-shown",
            special_tokens_shown,
            "Special tokens show in your texts. A reward that compares '4' with '4<end>' finds them different.",
        ),
        Misconception(
            "text-behind-the-end",
            whole_row_read,
            "You decode the whole row. Whatever stands behind the end of the completion reaches the rewards.",
        ),
    ),
)
