"""Sampling episodes, in which an environment or tools reply within the completions of the policy.

`environment.py` has the base class of environments and the sampling of episodes, and `text_environment.py` the simplest
environment. `tools.py` has the environment with tools, which plays one `ToolEpisode` (`tool_episode.py`) per completion
in the format of the tokenizer's chats (`tool_call_format.py`). `factory.py` makes the environment of a run.
"""
