"""Whether prompts can be put to a model: in a form that its tokenizer takes, and within its context."""

from collections.abc import Iterable

from grpo_lab.rollout.ways import context_length


def check_prompt(tokenizer, prompt, name: str = "prompt") -> None:
    """Raise ValueError unless it is a string, or messages for a tokenizer with a chat template."""
    if isinstance(prompt, str):
        return
    if not (isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt)):
        raise ValueError(f"{name} is {_short(prompt)}; expected a string or a non-empty list of messages")
    for place, message in enumerate(prompt):
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                found = f"is {_short(message[part])}" if part in message else "is missing"
                raise ValueError(f"{name}[{place}][{part!r}] {found}; expected a text")
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"{name} is a list of messages, and the tokenizer has no chat_template: put the chat_template.jinja of a "
            "model tuned from the same one into its folder; or, in Python, pass the prompt as a string"
        )


def encode_prompt(tokenizer, prompt, name: str = "prompt") -> list[int]:
    """The token ids of a prompt, which goes through the chat template if it is a list of messages."""
    check_prompt(tokenizer, prompt, name)
    if not isinstance(prompt, str):
        return _through_template(tokenizer, prompt, name)
    if ids := tokenizer(prompt)["input_ids"]:
        return ids
    raise ValueError(f"{name} is {prompt!r}, which has no token; expected at least one to follow")


def check_room(model, tokens: int, max_completion_length: int, name: str = "prompt") -> None:
    """Raise ValueError unless prompt and completion together find room in the model's context."""
    limit = context_length(model.config)
    if limit is None or tokens + max_completion_length <= limit:
        return
    if tokens >= limit:
        raise ValueError(f"{name} has {tokens} tokens; the model's context is {limit}, the completion included")
    raise ValueError(
        f"{name} has {tokens} tokens and max_completion_length is {max_completion_length}; together they must be at "
        f"most {limit}, the model's context"
    )


def check_prompts(model, tokenizer, prompts: Iterable, max_completion_length: int, name: str = "prompts[{}]") -> None:
    """All prompts of a run before its first step; those that are clearly short enough are not encoded for it."""
    limit, frames = context_length(model.config), {}
    for index, prompt in enumerate(prompts):
        check_prompt(tokenizer, prompt, name.format(index))
        if not prompt or (limit is not None and _bytes(tokenizer, prompt, frames) + max_completion_length > limit):
            ids = encode_prompt(tokenizer, prompt, name.format(index))
            check_room(model, len(ids), max_completion_length, name.format(index))


def _through_template(tokenizer, messages: list[dict], name: str) -> list[int]:
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    except Exception as error:  # templates raise what they like, such as that roles must alternate
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} is refused by the tokenizer's chat template ({said})") from error


def _bytes(tokenizer, prompt: str | list[dict], frames: dict) -> int | float:
    """At least as many as tokens: none stands for less than a byte, but for one that may open the sequence."""
    if isinstance(prompt, str):
        return len(prompt.encode()) + 1
    roles = tuple(message["role"] for message in prompt)
    if roles not in frames:
        frames[roles] = _frame(tokenizer, roles)
    return sum(len(message["content"].encode()) for message in prompt) + frames[roles]


def _frame(tokenizer, roles: tuple[str, ...]) -> int | float:
    """Bytes that the chat template writes around messages of these roles; infinity if it refuses empty ones."""
    empty = [{"role": role, "content": ""} for role in roles]
    try:
        return len(tokenizer.apply_chat_template(empty, add_generation_prompt=True, tokenize=False).encode()) + 1
    except Exception:  # as in `_through_template`; the prompts themselves are tried then
        return float("inf")


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
