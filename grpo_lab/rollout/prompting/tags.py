"""The text of a completion as the rewards see it, with the tags that a prompt opened or a tokenizer would leave out."""

import re
from collections.abc import Iterable

_TAG = re.compile(r"(<)(/?)([A-Za-z_][\w:-]*>)|(\[)(/?)(THINK\])|(◁)(/?)(\w+▷)")
_OPENING = r"<((?:\w+:)?(?:think|thinking|thought|reasoning))>|\[THINK\]|◁think▷"
_OPENED = re.compile(
    rf"({_OPENING})\s*(?:[^<\[◁]*(?:</\2>|\[/THINK\]|◁/think▷)\s*)?$",
    re.IGNORECASE,
)
_FRAMING = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TAIL = 64  # tokens at a prompt's end, enough for a thought that is opened, and closed after a sentence


def opened_thought(tokenizer, prompt_ids: list[int]) -> str:
    """The end of a prompt that opens the thinking itself, such as "<think>" and a line break; or ""."""
    opened = _OPENED.search(tokenizer.decode(prompt_ids[-_TAIL:], skip_special_tokens=False))
    return opened[0] if opened else ""


def opening_tag(opened: str) -> str:
    """The tag with which the text of `opened_thought` begins."""
    return match[1] if (match := _OPENED.match(opened)) else ""


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


def seen_text(tokenizer, completion_ids: list[int], tags: dict[int, str], opened: str = "") -> str:
    """A completion as the rewards see it: without special tokens that are no tags, after what the prompt opened."""
    if tags:
        return after_opened(text_with_tags(tokenizer, completion_ids, tags), opened)
    return after_opened(tokenizer.decode(completion_ids, skip_special_tokens=True), opened)


def text_with_tags(tokenizer, completion_ids: list[int], tags: dict[int, str]) -> str:
    """The text of a completion, of whose special tokens only the tags show."""
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    text_ids = [token_id for token_id in completion_ids if token_id in tags or token_id not in special]
    return tokenizer.decode(text_ids, skip_special_tokens=False)


def after_opened(text: str, opened: str) -> str:
    """The text after what the prompt opened, which a completion that opens it once more does not need."""
    return text if opened and text.lstrip().startswith(opening_tag(opened)) else opened + text


def _pair(bracket: str, *parts: str) -> set[str]:
    """The opening and the closing tag, from the bracket, the slash of a closing one, and the name."""
    return {bracket + parts[-1], f"{bracket}/{parts[-1]}"}
