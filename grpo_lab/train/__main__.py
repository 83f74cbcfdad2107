"""Run the training command: `python -m grpo_lab.train`, or on several processes `torchrun -m grpo_lab.train`."""

import sys

from grpo_lab.train import main

if __name__ == "__main__":
    sys.exit(main())
