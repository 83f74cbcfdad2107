"""Run the command: `python -m grpo_lab.evaluate`."""

import sys

from grpo_lab.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
