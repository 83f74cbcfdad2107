"""A chat, a chat template that renders all of its messages, and a tokenizer with another template."""

import copy

SYSTEM = {"role": "system", "content": "Think first."}
EXAMPLE = [
    {"role": "user", "content": "1+1=?"},
    {"role": "assistant", "content": "<think>one and one</think>\n<answer>2</answer>"},
]
CHAT = [SYSTEM, *EXAMPLE, {"role": "user", "content": "2+2=?"}]
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + OPEN


def with_template(tiny, template: str):
    tokenizer = copy.deepcopy(tiny[1])
    tokenizer.chat_template = template
    return tokenizer
