"""The text of a completion as the rewards see it, with the tags that a prompt opened or a tokenizer would leave out."""

import re
from collections.abc import Iterable

_TAG = re.compile(r"<(/?)([A-Za-z_][\w-]*)>")
_OPENED = re.compile(r"<(think|thinking|thought|reasoning)>\s*(?:</\1>\s*)?$")
_FRAMING = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TAIL = 16  # tokens at a prompt's end, enough for an opened thought


def opened_thought(tokenizer, prompt_ids: list[int]) -> str:
    """The end of a prompt that opens the thinking itself, such as "<think>" and a line break; else empty."""
    opened = _OPENED.search(tokenizer.decode(prompt_ids[-_TAIL:], skip_special_tokens=False))
    return opened[0] if opened else ""


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
        and {f"<{tag[2]}>", f"</{tag[2]}>"} <= contents
        and token_id not in {*eos_token_ids}
    }


def seen_text(tokenizer, completion_ids: list[int], tags: dict[int, str], opened: str = "") -> str:
    """A completion as the rewards see it: without special tokens that are no tags, after what the prompt opened."""
    if tags:
        special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        text_ids = [token_id for token_id in completion_ids if token_id in tags or token_id not in special]
        text = tokenizer.decode(text_ids, skip_special_tokens=False)
    else:
        text = tokenizer.decode(completion_ids, skip_special_tokens=True)
    return text if opened and text.lstrip().startswith(opened.split(">")[0] + ">") else opened + text
