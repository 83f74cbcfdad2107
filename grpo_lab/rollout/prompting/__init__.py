"""From prompts to token ids: chat templates, the messages that they lose, and the tokens that tokenizers add."""
