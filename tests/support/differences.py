"""Where a setting means something else than TRL's of the same name, as docs/commands.md says it."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
SECTION = re.search("## The names of TRL.*?(?=\n## )", PAGE, re.DOTALL)[0]
OTHER_DEFAULTS = re.findall(r"`(\w+)`", re.search("Another default: (.*)", SECTION)[1])
MEANINGS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", SECTION, re.MULTILINE))
