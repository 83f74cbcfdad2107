"""The text of a completion as the rewards see it.

It has two things that plain decoding leaves out: tags such as </think> that are special tokens of the tokenizer, and
the tag that opens a thought if the prompt ends with it.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.rollout.inputs import EncodedPrompts

# An opening or a closing tag: its bracket, the slash of a closing tag, and its name with the closing bracket.
_TAG = re.compile(r"(<)(/?)([A-Za-z_][\w:-]*>)|(\[)(/?)(THINK\])|(◁)(/?)(\w+▷)")
_OPENING = r"<((?:\w+:)?(?:think|thinking|thought|reasoning))>|\[THINK\]|◁think▷"
# The end of a prompt that opens a thought, and may close it again.
_PREFIX = re.compile(
    rf"({_OPENING})\s*(?:[^<\[◁]*(?:</\2>|\[/THINK\]|◁/think▷)\s*)?$",
    re.IGNORECASE,
)
_FRAMING = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TAIL_TOKENS = 64  # tokens at the end of a prompt: enough for a thought that is opened, and closed after a sentence


def thought_prefix(tokenizer, prompt_ids: list[int]) -> str:
    """Return the end of a prompt that opens a thought, such as "<think>" and a line break; "" if it opens none."""
    match = _PREFIX.search(tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special_tokens=False))
    return match[0] if match else ""


def thought_prefixes(tokenizer, prompts: EncodedPrompts) -> list[str]:
    """Return the `thought_prefix` of each prompt."""
    return [thought_prefix(tokenizer, ids[is_token].tolist()) for ids, is_token in zip(*prompts, strict=True)]


def opening_tag(prefix: str) -> str:
    """Return the tag that a `thought_prefix` begins with, such as "<think>"; "" for an empty prefix."""
    return match[1] if (match := _PREFIX.match(prefix)) else ""


def tag_tokens(tokenizer, eos_token_ids: Iterable[int] = ()) -> dict[int, str]:
    """Return the special tokens that belong to a pair of tags, such as <think> and </think>: each text by its id.

    Tokens that frame a text, such as its begin and end tokens and `eos_token_ids`, are not tags.
    """
    added_tokens = getattr(tokenizer, "added_tokens_decoder", None)
    if not added_tokens:
        return {}
    framing_tokens = {tokenizer.special_tokens_map.get(name) for name in _FRAMING}
    candidates = {token.content for token in added_tokens.values()} - framing_tokens
    end_ids = {*eos_token_ids}
    tags = {}
    for token_id, token in added_tokens.items():
        pair = _pair_of_tag(token.content)
        if token.special and pair and pair <= candidates and token_id not in end_ids:
            tags[token_id] = token.content
    return tags


class TagKeepingTokenizer:
    """A tokenizer that keeps tags such as </think> when it decodes without special tokens, even if tags are special.

    Everything but `decode` is that of the tokenizer.

    eos_token_ids: The tokens that end a completion; they are never kept.
    """

    def __init__(self, tokenizer, eos_token_ids: Iterable[int]):
        self._tokenizer = tokenizer
        self._tags = tag_tokens(tokenizer, eos_token_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, token_ids: Tensor | list[int], skip_special_tokens: bool = False) -> str:
        if not skip_special_tokens:
            return self._tokenizer.decode(token_ids)
        return _decode_with_tags(self._tokenizer, torch.as_tensor(token_ids).tolist(), self._tags)


def texts_for_rewards(
    tokenizer, completion_ids: list[list[int]], prompts: EncodedPrompts, eos_token_ids: Iterable[int]
) -> list[str]:
    """Return the text of each completion as the rewards see it.

    Args:
        tokenizer: The tokenizer that decodes the ids.
        completion_ids: The ids of B completions without padding, G consecutive ones for each prompt.
        prompts: The P prompts, B = P*G.
        eos_token_ids: The tokens that end a completion; they are left out.
    """
    num_generations = len(completion_ids) // len(prompts.ids)
    tags = tag_tokens(tokenizer, eos_token_ids)
    prefixes = thought_prefixes(tokenizer, prompts)
    return [
        text_for_rewards(tokenizer, ids, tags, prefixes[row // num_generations])
        for row, ids in enumerate(completion_ids)
    ]


def text_for_rewards(tokenizer, completion_ids: list[int], tags: dict[int, str], prefix: str = "") -> str:
    """Return the text of a completion as the rewards see it: the prompt's thought prefix, then the decoded completion.

    Args:
        tokenizer: The tokenizer that decodes the ids.
        completion_ids: The ids of the completion without padding.
        tags: The `tag_tokens` of the tokenizer. They stay in the text; all other special tokens are left out.
        prefix: The `thought_prefix` of the prompt. It is left out if the completion opens the thought once more.
    """
    return with_thought_prefix(_decode_with_tags(tokenizer, completion_ids, tags), prefix)


def with_thought_prefix(text: str, prefix: str) -> str:
    """Return the text of a completion after the `thought_prefix` of its prompt, unless it opens the thought again."""
    opens_thought_again = prefix != "" and text.lstrip().startswith(opening_tag(prefix))
    return text if opens_thought_again else prefix + text


def _decode_with_tags(tokenizer, completion_ids: list[int], tags: dict[int, str]) -> str:
    """Decode a completion without special tokens, except for the tags."""
    if not tags:
        return tokenizer.decode(completion_ids, skip_special_tokens=True)
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    text_ids = [token_id for token_id in completion_ids if token_id in tags or token_id not in special]
    return tokenizer.decode(text_ids, skip_special_tokens=False)


def _pair_of_tag(text: str) -> set[str]:
    """Return the opening and the closing tag of the pair that a tag belongs to; empty if the text is not a tag."""
    match = _TAG.fullmatch(text)
    if match is None:
        return set()
    bracket, *_, name = filter(None, match.groups())
    return {bracket + name, f"{bracket}/{name}"}
