"""Names that several packages share: files and metrics of a run, and arguments of reward functions.

The command `diagnose` uses them without importing torch.
"""

# Files in the folder of a run.
METRICS_FILE = "metrics.jsonl"  # one JSON object per step
COMPLETIONS_FILE = "completions.jsonl"  # one JSON object per completion
SETTINGS_FILE = "grpo_config.json"  # the settings of the run
# The only metric of an update that is a maximum over all tokens; every other one is a sum or a mean.
LOGP_DIFFERENCE_MAX = "sampling/logp_difference_max"
# Share of tokens whose log-probabilities differ by more than LOGP_TOLERANCE in trainer/metrics.py.
FRAC_LOGP_DIFFERENCE = "sampling/frac_logp_difference"
FRAC_TRAINED_REPLIES = "tools/frac_trained"  # share of the environments' tokens that the loss counts; 0 expected
# Arguments that the trainer passes to a reward function that has parameters with these names.
TRAINER_ARGUMENTS = ("trainer_state", "log_metric", "log_extra")
