"""One reply. It is greedy unless a temperature is given: before and after training you want to see what the policy
thinks best, and not what it happened to draw.
"""

from collections.abc import Callable

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from grpo_lab.checks import check_at_least, check_finite
from grpo_lab.rollout import encode_prompts, end_token_ids, evaluating, pad_token_id
from grpo_lab.rollout.prompts import set_aside_generation_config


@torch.no_grad()
def reply(
    model,
    tokenizer,
    prompt: str | list[dict],
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    write: Callable[[str], object] | None = None,
) -> str:
    """The policy's reply, without special tokens.

    prompt: what the user says, or a list of chat messages.
    max_new_tokens: the reply is cut off there, at least 1.
    temperature: 0 takes the most likely token at every step; above, tokens are drawn, as they are in training.
    write: is given each piece of the reply as soon as it is there; together they are the reply.
    """
    check_at_least("max_new_tokens", max_new_tokens, 1)
    check_at_least("temperature", temperature, 0)
    check_finite("temperature", temperature)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    ids, mask = (x.to(model.device) for x in encode_prompts(tokenizer, [messages]))
    settings = GenerationConfig(
        **({"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}),
        max_new_tokens=max_new_tokens,
        eos_token_id=end_token_ids(model, tokenizer),
        pad_token_id=pad_token_id(tokenizer),
    )
    pieces = None if write is None else _Pieces(tokenizer, write)
    with evaluating(model), set_aside_generation_config(model):  # its penalties would change the reply
        sequence = model.generate(ids, attention_mask=mask.long(), generation_config=settings, streamer=pieces)[0]
    return tokenizer.decode(sequence[ids.shape[1] :], skip_special_tokens=True)


class _Pieces(BaseStreamer):
    """Writes what is new in the text. transformers' own streamer forgets after each line what was before it, and some
    tokenizers lose spaces by that.
    """

    def __init__(self, tokenizer, write: Callable[[str], object]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] | None = None  # None until the prompt has passed
        self.written = ""

    def put(self, value: torch.Tensor) -> None:
        if self.ids is None:
            self.ids = []
            return
        self.ids += value.flatten().tolist()
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the bytes of one letter may be several tokens
            self._write(text)

    def end(self) -> None:
        self._write(self.tokenizer.decode(self.ids or [], skip_special_tokens=True))

    def _write(self, text: str) -> None:
        if text.startswith(self.written) and text != self.written:
            self.write(text[len(self.written) :])
            self.written = text
