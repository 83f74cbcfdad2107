"""Tools that every notebook of the series uses: its beginning, the fast and the full profile, and predictions."""

from grpo_lab.teaching.notebook.beginning import PROFILES, begin, fast_or_full, profile
from grpo_lab.teaching.notebook.predictions import how_well_did_you_predict, predict
