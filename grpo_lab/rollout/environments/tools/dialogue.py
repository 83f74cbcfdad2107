"""How calls are read and results are written: by the tokenizer's `parse_response`, and by its chat template.

Neither goes over what was sampled: a call is read from its ids, and of a result only what the template writes after the
policy's end token is encoded. So the template has to keep its prefix: what it wrote of a conversation must be the
beginning of what it writes of a longer one. One that drops earlier thoughts does not, and is refused.
"""

import json
import re
from itertools import takewhile
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments.episodes import encode_reply

# JSON as a regular expression: what it matches, json.loads reads.
_WS = r"[ \t\r\n]*+"
_JSON = (
    r'(?(DEFINE)(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+")'
    rf"(?P<pair>(?&string){_WS}:{_WS}(?&value))"
    rf"(?P<object>\{{{_WS}(?:(?&pair){_WS}(?:,{_WS}(?&pair){_WS})*+)?+\}})"
    rf"(?P<array>\[{_WS}(?:(?&value){_WS}(?:,{_WS}(?&value){_WS})*+)?+\])"
    r"(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)"
    r"(?P<value>(?&string)|(?&number)|(?&object)|(?&array)|true|false|null))"
)
_END = r"(?:<\|im_end\|>|<\|endoftext\|>)?\s*\Z"


def json_calls(names: list[str]) -> dict:
    """How Qwen2.5 and others write a call of these tools, for tokenizers that bring no `response_template`.

    JSON in <tool_call>, as their chat templates have it; or, as small models write it, without the tags. Then only a
    whole turn is a call, bare or in one fenced block: an object of `name`, that of a tool, and `arguments`, an object.
    """
    name = rf'"name"{_WS}:{_WS}"(?:{"|".join(map(re.escape, names))})"'
    arguments = rf'"arguments"{_WS}:{_WS}(?&object)'
    both = rf"\{{{_WS}(?:{name}{_WS},{_WS}{arguments}|{arguments}{_WS},{_WS}{name}){_WS}\}}"
    bare = rf"\A\s*+(?P<fence>```(?:json)?\s*+)?+(?={both}\s*+(?(fence)```\s*+){_END})(?!.*<tool_call>)"
    return {
        "start_anchor": "<|im_start|>assistant\n",
        "defaults": {"role": "assistant"},
        "fields": {
            "tool_calls": {
                "open_pattern": rf"{_JSON}(?:<tool_call>|{bare})",
                "close_pattern": rf"</tool_call>\s*|(?<!<tool_call>.*)\s*(?:```)?\s*(?={_END})",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    }


CALL = {"type": "function", "function": {"name": "look_up_word", "arguments": {"word": "rain 7"}}}
QUESTION = [{"role": "user", "content": "What is it?"}]
THOUGHT = "<think>I look it up.</think>"
CHAT_TEMPLATE = "the chat template of this model"
TAKE_A_TUNED_MODEL = (
    "take a model tuned for tools, such as qwen; tiny has none, and a calculator in plain text: --task sums-calculator"
)


class Dialogue:
    """Reads the calls of a policy, and writes their results, as the tokenizer of a model has both.

    schemas: JSON schemas of the tools, as the chat template takes them.

    Raises:
        InputError: for a chat template that writes no calls or results, or does not keep its prefix; and where nobody
            knows how its calls are to be read.
    """

    def __init__(self, tokenizer, schemas: list[dict]):
        self.tokenizer = tokenizer
        self.schemas = schemas
        if not schemas:  # an environment without tools: nothing is called
            return
        self._check_template()
        self.response_template = getattr(tokenizer, "response_template", None) or json_calls(
            [schema["function"]["name"] for schema in schemas]
        )
        self._check_reading()

    def read(self, ids: list[int], prefix: list[int]) -> tuple[dict, str]:
        """The message that a turn's ids are, and what is wrong with the calls in it: a text, empty where they are well.

        prefix: the ids before them, the prompt's among them. A message with calls that cannot be read has its text as
        its content, and no calls.
        """
        tokenizer = self.tokenizer
        if not self.schemas:
            return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}, ""
        try:
            keywords = {"schema": self.response_template, "prefix": prefix, "tools": self.schemas}
            message = tokenizer.parse_response(ids, **keywords) if ids else {"role": "assistant"}
            content = message.get("content")
            message["content"] = content.removesuffix(tokenizer.eos_token) if isinstance(content, str) else ""
            for call in message.get("tool_calls") or ():
                _check_call(call)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            content = tokenizer.decode(ids, skip_special_tokens=True)
            return {"role": "assistant", "content": content}, " ".join(
                str(error).replace(tokenizer.eos_token, "").split()
            )
        return message, ""

    def write(self, results: list[dict]) -> list[int]:
        """The ids that go on after the policy's end token: these tool messages, and the beginning of its next turn."""
        name = results[0]["name"]  # a template may take the name from the call
        called = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": _no_arguments(name)}],
        }
        prefix = self._up_to_end(self._text([*QUESTION, called]))
        text = self._text([*QUESTION, called, *results], add_generation_prompt=True)
        if not text.startswith(prefix):
            raise self._changes_prefix()
        return encode_reply(self.tokenizer, text[len(prefix) :])

    def _text(self, messages: list[dict], **keywords) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, **keywords)

    def _up_to_end(self, text: str) -> str:
        """A text up to and with its last end token, which the policy wrote; templates have a line break after it."""
        end = self.tokenizer.eos_token
        return text[: text.rindex(end) + len(end)] if end in text else text

    def _check_template(self) -> None:
        if not self.tokenizer.chat_template:
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, found="is missing")
        thought = {"role": "assistant", "content": THOUGHT, "tool_calls": [CALL]}
        tool_message = {"role": "tool", "name": CALL["function"]["name"], "content": "It falls."}
        try:
            called = self._text([*QUESTION, thought])
            text = self._text([*QUESTION, thought, tool_message], add_generation_prompt=True)
        except Exception as error:  # templates raise what they like
            problem = f"refuses a conversation with a tool ({type(error).__name__}: {error})"
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, found=problem) from error
        if lost := next((part for part in ("look_up_word", "rain 7", "It falls.") if part not in text), None):
            problem = f"leaves out {'the results of tools' if lost == 'It falls.' else 'tool calls'}"
            raise InputError(CHAT_TEMPLATE, None, TAKE_A_TUNED_MODEL, found=problem)
        if not text.startswith(self._up_to_end(called)) or THOUGHT not in text:
            raise self._changes_prefix()

    def _changes_prefix(self) -> InputError:
        problem = "does not keep its prefix: it writes earlier turns otherwise once there are later ones"
        expected = "expected one that only appends, since the policy is trained on the tokens that it sampled"
        return InputError(CHAT_TEMPLATE, None, expected, found=problem)

    def _check_reading(self) -> None:
        """Raise InputError where a call that the template writes is read as another one, or not at all."""
        prompt_text = self._text(QUESTION, add_generation_prompt=True)
        text = self._text([*QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}])
        # Some begin the assistant's turn with other words where it calls a tool: what both have is the prefix.
        common = [*takewhile(lambda pair: pair[0] == pair[1], zip(prompt_text, text, strict=False))]
        response = self._up_to_end(text)[len(common) :].lstrip("\n")
        message, malformed = self.read(
            encode_reply(self.tokenizer, response), encode_reply(self.tokenizer, prompt_text)
        )
        if malformed or message.get("tool_calls") != [CALL]:
            problem = f"is not known for the calls of this chat template, such as {response!r:.90}"
            expected = "give the tokenizer its own (transformers' response parsing), or take a model such as qwen"
            raise InputError("response_template", None, expected, found=problem)


class MalformedCall(ValueError):
    """A call that the policy wrote and nobody can read; it is told so."""


def _check_call(call: Any) -> None:
    """Raise MalformedCall for a call without a name; one without arguments has none."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        excerpt = json.dumps(function, ensure_ascii=False, default=str)[:80]
        raise MalformedCall(f'expected {{"name": ..., "arguments": {{...}}}} in a call, not {excerpt}')
    if function.get("arguments") is None:
        function["arguments"] = {}


def _no_arguments(name: str) -> dict:
    return {"name": name, "arguments": {}}
