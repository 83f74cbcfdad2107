"""From prompts to token ids: what a chat template makes of messages, and whether it loses or adds anything."""
