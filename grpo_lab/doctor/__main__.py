"""`python -m grpo_lab.doctor`."""

import sys

from grpo_lab.doctor.checks import main

sys.exit(main())
