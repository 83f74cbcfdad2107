"""`python -m grpo_lab.formulas`: every equation of the package, with the line that computes it."""

import sys

from grpo_lab.formulas.catalogue import main

sys.exit(main())
