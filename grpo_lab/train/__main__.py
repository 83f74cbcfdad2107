"""`python -m grpo_lab.train`; `torchrun -m grpo_lab.train` on several processes."""

import sys

from grpo_lab.train import main

if __name__ == "__main__":
    sys.exit(main())
