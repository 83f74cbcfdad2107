"""The texts of completions as the rewards see them.

A text (`CompletionTexts`) has two things that plain decoding leaves out: tags such as </think> that are special tokens
of the tokenizer (`TagKeepingTokenizer`), and the tag that opens a thought if the prompt ends with it
(`thought_prefix`).
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.rollout.rollout import EncodedPrompts

# An opening or a closing tag: its bracket, the slash of a closing tag, and its name with the closing bracket.
_TAG = re.compile(r"(<)(/?)([A-Za-z_][\w:-]*>)|(\[)(/?)(THINK\])|(◁)(/?)(\w+▷)")
_OPENING_TAG = r"<((?:\w+:)?(?:think|thinking|thought|reasoning))>|\[THINK\]|◁think▷"
# The end of a prompt that opens a thought, and may close it again.
_THOUGHT_PREFIX = re.compile(
    rf"({_OPENING_TAG})\s*(?:[^<\[◁]*(?:</\2>|\[/THINK\]|◁/think▷)\s*)?$",
    re.IGNORECASE,
)
# Names of the tokens of a tokenizer that frame a text, or stand for a missing or an unknown one.
_FRAMING_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Number of tokens at the end of a prompt that are searched: enough for a thought that is opened, and closed after a
# sentence.
_MAX_PREFIX_TOKENS = 64


class CompletionTexts:
    """Decodes the completions of a rollout into the texts that the rewards see.

    Args:
        tokenizer: The tokenizer of the policy.
        prompts: The P prompts. Each is followed by G completions: row b answers prompt b // G.
        num_generations: G.
        eos_token_ids: The tokens that end a completion; they are left out of the texts.
    """

    def __init__(self, tokenizer, prompts: EncodedPrompts, num_generations: int, eos_token_ids: Iterable[int]):
        self.tokenizer = TagKeepingTokenizer(tokenizer, eos_token_ids)
        self._prefixes = [thought_prefix(tokenizer, ids) for ids in prompts.unpadded_ids()]
        self._num_generations = num_generations

    def text(self, row: int, completion_ids: list[int]) -> str:
        """Return the text of a completion, or of the beginning of one.

        row: The row of the completion.
        completion_ids: Its ids without padding.
        """
        return self.with_prefix(row, self.tokenizer.decode(completion_ids, skip_special_tokens=True))

    def with_prefix(self, row: int, decoded: str) -> str:
        """Return a completion that `tokenizer` of this object has decoded, after the thought prefix of its prompt."""
        return with_thought_prefix(decoded, self._prefixes[row // self._num_generations])


class TagKeepingTokenizer:
    """A tokenizer that keeps tags such as </think> when it decodes without special tokens, even if tags are special.

    Everything but `decode` is that of the tokenizer.

    Args:
        tokenizer: The tokenizer of the policy.
        eos_token_ids: The tokens that end a completion; they are never kept.
    """

    def __init__(self, tokenizer, eos_token_ids: Iterable[int]):
        self._tokenizer = tokenizer
        self.tags = tag_tokens(tokenizer, eos_token_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, token_ids: Tensor | list[int], skip_special_tokens: bool = False) -> str:
        """Decode token ids; with `skip_special_tokens`, leave out all special tokens but the tags."""
        if not self.tags or not skip_special_tokens:
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        special = {token_id for token_id, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        ids = torch.as_tensor(token_ids).tolist()
        text_ids = [token_id for token_id in ids if token_id in self.tags or token_id not in special]
        return self._tokenizer.decode(text_ids, skip_special_tokens=False)


def tag_tokens(tokenizer, eos_token_ids: Iterable[int] = ()) -> dict[int, str]:
    """Return the special tokens that belong to a pair of tags, such as <think> and </think>: each text by its id.

    Tokens that frame a text, such as its begin and end tokens and `eos_token_ids`, are not tags.
    """
    added_tokens = getattr(tokenizer, "added_tokens_decoder", None)
    if not added_tokens:
        return {}
    framing_tokens = {tokenizer.special_tokens_map.get(name) for name in _FRAMING_TOKENS}
    candidates = {token.content for token in added_tokens.values()} - framing_tokens
    end_ids = {*eos_token_ids}
    tags = {}
    for token_id, token in added_tokens.items():
        match = _TAG.fullmatch(token.content)
        if match is None or not token.special or token_id in end_ids:
            continue
        bracket, *_, name = filter(None, match.groups())
        opening, closing = bracket + name, f"{bracket}/{name}"
        if {opening, closing} <= candidates:
            tags[token_id] = token.content
    return tags


def thought_prefix(tokenizer, prompt_ids: list[int]) -> str:
    """Return the end of a prompt that opens a thought, such as "<think>" and a line break; "" if it opens none."""
    match = _THOUGHT_PREFIX.search(tokenizer.decode(prompt_ids[-_MAX_PREFIX_TOKENS:], skip_special_tokens=False))
    return match[0] if match else ""


def opening_tag(prefix: str) -> str:
    """Return the tag that a `thought_prefix` begins with, such as "<think>"; "" for an empty prefix."""
    return match[1] if (match := _THOUGHT_PREFIX.match(prefix)) else ""


def with_thought_prefix(text: str, prefix: str) -> str:
    """Return the text of a completion after the `thought_prefix` of its prompt, unless it opens the thought again."""
    opens_thought_again = prefix != "" and text.lstrip().startswith(opening_tag(prefix))
    return text if opens_thought_again else prefix + text
