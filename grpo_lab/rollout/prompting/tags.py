"""The text of a completion as the rewards see it, with the tags that a prompt opened or a tokenizer would leave out."""

import re
from collections.abc import Iterable

from grpo_lab.rollout.inputs import Prompts

_TAG = re.compile(r"(<)(/?)([A-Za-z_][\w:-]*>)|(\[)(/?)(THINK\])|(◁)(/?)(\w+▷)")
_OPENING = r"<((?:\w+:)?(?:think|thinking|thought|reasoning))>|\[THINK\]|◁think▷"
_PREFIX = re.compile(
    rf"({_OPENING})\s*(?:[^<\[◁]*(?:</\2>|\[/THINK\]|◁/think▷)\s*)?$",
    re.IGNORECASE,
)
_FRAMING = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TAIL = 64  # tokens at a prompt's end, enough for a thought that is opened, and closed after a sentence


def thought_prefix(tokenizer, prompt_ids: list[int]) -> str:
    """The end of a prompt that opens the thinking itself, such as "<think>" and a line break; or ""."""
    match = _PREFIX.search(tokenizer.decode(prompt_ids[-_TAIL:], skip_special_tokens=False))
    return match[0] if match else ""


def thought_prefixes(tokenizer, prompts: Prompts) -> list[str]:
    """The `thought_prefix` of each prompt."""
    return [thought_prefix(tokenizer, ids[is_token].tolist()) for ids, is_token in zip(*prompts, strict=True)]


def opening_tag(prefix: str) -> str:
    """The tag with which a `thought_prefix` begins."""
    return match[1] if (match := _PREFIX.match(prefix)) else ""


def tag_tokens(tokenizer, eos_token_ids: Iterable[int] = ()) -> dict[int, str]:
    """The special tokens that are tags of a pair, such as <think> and </think>, but for those that frame every text."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    named = {tokenizer.special_tokens_map.get(name) for name in _FRAMING} if added else set()
    contents = {token.content for token in added.values()} - named
    return {
        token_id: token.content
        for token_id, token in added.items()
        if token.special
        and (tag := _TAG.fullmatch(token.content))
        and _pair(*filter(None, tag.groups())) <= contents
        and token_id not in {*eos_token_ids}
    }


def text_for_rewards(tokenizer, completion_ids: list[int], tags: dict[int, str], prefix: str = "") -> str:
    """A completion as the rewards see it: with tags but without other special tokens, after the thought prefix."""
    if tags:
        return with_thought_prefix(text_with_tags(tokenizer, completion_ids, tags), prefix)
    return with_thought_prefix(tokenizer.decode(completion_ids, skip_special_tokens=True), prefix)


def text_with_tags(tokenizer, completion_ids: list[int], tags: dict[int, str]) -> str:
    """The text of a completion, of whose special tokens only the tags show."""
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    text_ids = [token_id for token_id in completion_ids if token_id in tags or token_id not in special]
    return tokenizer.decode(text_ids, skip_special_tokens=False)


def with_thought_prefix(text: str, prefix: str) -> str:
    """The text after the prompt's thought prefix, which a completion that opens the thought once more does not need."""
    return text if prefix and text.lstrip().startswith(opening_tag(prefix)) else prefix + text


def _pair(bracket: str, *parts: str) -> set[str]:
    """The opening and the closing tag, from the bracket, the slash of a closing one, and the name."""
    return {bracket + parts[-1], f"{bracket}/{parts[-1]}"}
