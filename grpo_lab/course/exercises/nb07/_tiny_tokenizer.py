"""A tokenizer of eight tokens, for which encoding what was decoded does not give the same tokens back."""

import torch

PAD, END, STOP = 0, 1, 2
WORDS = {3: "a", 4: "b", 5: "ab", 6: " ", 7: "<think>"}  # "a" and "b" in a row read as "ab", which is a token itself


class TinyTokenizer:
    """Decodes as transformers' tokenizers do; encodes the longest piece first, as byte-pair encoding ends up doing."""

    eos_token_id = END
    eos_token, pad_token = "<end>", "<pad>"

    all_special_ids = (PAD, END, STOP)

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
