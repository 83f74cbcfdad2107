"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute."""

__version__ = "0.1.0"
