import torch

from grpo_lab.course.exercise import Dice, Exercise, Misconception, at_scale, drawn, given
from grpo_lab.rollout import read_sequences

PAD, END, STOP = 0, 1, 2
WORDS = {3: "a", 4: "b", 5: "ab", 6: " ", 7: "<think>"}  # "a" and "b" in a row read as "ab", which is a token itself


class TinyTokenizer:
    """Eight tokens, for which encoding what was decoded does not give the same tokens back.

    Decodes as transformers' tokenizers do; encodes the longest piece first, as byte-pair encoding ends up doing.
    """

    eos_token_id = END
    eos_token, pad_token = "<end>", "<pad>"

    def __init__(self, pad_token_id: int = PAD):
        self.pad_token_id = pad_token_id

    def decode(self, token_ids, skip_special_tokens: bool = False, **ignored) -> str:
        ids = torch.as_tensor(token_ids).flatten().tolist()
        return "".join(WORDS.get(i) or ("" if skip_special_tokens else f"<{i}>") for i in ids)

    def batch_decode(self, sequences, **settings) -> list[str]:
        return [self.decode(row, **settings) for row in sequences]

    def encode(self, text: str, **ignored) -> list[int]:
        ids, pieces = [], sorted(WORDS.items(), key=lambda item: -len(item[1]))
        while text:
            found = next(((i, word) for i, word in pieces if text.startswith(word)), None)
            if found:
                ids.append(found[0])
            text = text[len(found[1]) :] if found else text[1:]
        return ids


def retokenised(sequences, prompt_length, eos_token_ids, tokenizer):
    ids, mask, truncated, texts = read_sequences(sequences, prompt_length, eos_token_ids, tokenizer)
    again = torch.full_like(ids, tokenizer.pad_token_id)
    for row, text in zip(again, texts, strict=True):
        new = tokenizer.encode(text, add_special_tokens=False)
        row[: len(new)] = torch.tensor(new)
    return again, mask, truncated, texts


def generated(label, rows, prompt_length, ends=(END,), pad=PAD):
    return given(label, torch.tensor(rows), prompt_length, list(ends), TinyTokenizer(pad))


def _many(dice: Dice) -> tuple:
    """Padded on the left with the end token, as a tokenizer without padding token is; rows cut off, or ended."""
    rows = dice.integers(5, 6, 9) + 3
    rows[:3, :2] = END
    for row, length in enumerate(dice.integers(4, 4).tolist()):
        rows[row, 4 + length :] = END
    return rows, 4, [END, STOP], TinyTokenizer(END)


def _large(dice: Dice) -> tuple:
    """300 tokens a row, padding sampled as a word among them; two rows are cut off, the others end somewhere."""
    rows = torch.tensor([PAD, 3, 4, 5, 6, 7])[dice.integers(6, 7, 337)]
    for row, length in enumerate(dice.integers(300, 5).tolist()):
        rows[row, 37 + length] = (END, STOP)[row % 2]
        rows[row, 37 + length + 1 :: 2] = (STOP, END)[row % 2]
    return rows, 37, [STOP, END], TinyTokenizer()


EXERCISE = Exercise(
    function=read_sequences,
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
        generated(
            "another token than the tokenizer's ends it", [[6, 3, END, 4, STOP], [6, END, PAD, 3, 4]], 1, ends=(STOP,)
        ),
        generated("a word ends the completion", [[6, 3, 4, PAD], [6, 4, END, 3], [6, 3, 3, 3]], 1, ends=(END, 4)),
        drawn("many rows", _many),
        at_scale("300 tokens", _large),
    ),
    misconceptions={
        "retokenised": Misconception(
            "You decode the completion and encode the text again. Where the policy sampled 'a', then 'b', the text "
            "'ab' is one token: you read a token that was never sampled, and lose the end token. Which ids are the "
            "ones that were sampled?",
            wrong=retokenised,
        ),
        "eos-trimmed": Misconception(
            "Your mask leaves the end token out. The policy *chose* to stop there. If that choice never counts, "
            "stopping is never rewarded, and responses grow to the limit.",
            {
                "completion_mask()": "mask = completion_mask(completion_ids, eos_token_ids) & ~torch.isin("
                "completion_ids, torch.tensor(eos_token_ids))"
            },
        ),
        "eos-masked-as-padding": Misconception(
            "You mask every token that has the padding's id. Where padding *is* the end token, as in many checkpoints, "
            "the first end is masked with it, and stopping is never rewarded. Only position tells the two apart.",
            {
                "completion_mask()": "mask = completion_mask(completion_ids, eos_token_ids) & (completion_ids != "
                "tokenizer.pad_token_id)"
            },
        ),
        "prompt-kept": Misconception(
            "The prompt is still in there. The policy did not choose those tokens. Where do the completions begin?",
            {"completion_mask()": "completion_ids = sequences\nmask = completion_mask(completion_ids, eos_token_ids)"},
        ),
        "one-end-only": Misconception(
            "You look for the tokenizer's end token alone. Chat models end a turn with another one; then every "
            "response seems to have been cut off. `eos_token_ids` lists them all.",
            {
                "completion_mask()": "eos_token_ids = [tokenizer.eos_token_id]\n"
                "mask = completion_mask(completion_ids, eos_token_ids)"
            },
        ),
        "full-is-truncated": Misconception(
            "You call a row truncated if it is full. It may have ended on its very last token: that response is "
            "complete.",
            {"isin()": "truncated = mask.all(-1)"},
        ),
    },
)
