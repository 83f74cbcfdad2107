"""Talk to a policy: one reply, a conversation, a chat box for a notebook, and `python -m grpo_lab.chat` in a shell."""

from grpo_lab.chat.answer import reply
from grpo_lab.chat.box import ChatBox
from grpo_lab.chat.conversation import Conversation
