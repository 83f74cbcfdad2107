"""Read from docs/commands.md the settings that mean something else than TRL's settings of the same name."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
SECTION = re.search("## The names of TRL.*?(?=\n## )", PAGE, re.DOTALL)[0]
OTHER_DEFAULTS = re.findall(r"`(\w+)`", re.search("Another default: (.*)", SECTION)[1])
MEANINGS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", SECTION, re.MULTILINE))
