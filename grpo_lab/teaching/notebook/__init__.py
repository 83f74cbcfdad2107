"""Tools that every notebook of the series uses: a beginning, a pace, and predictions that are asked for and counted."""

from grpo_lab.teaching.notebook.beginning import PROFILES, begin, fast_or_full, profile
from grpo_lab.teaching.notebook.predictions import how_well_did_you_predict, predict
