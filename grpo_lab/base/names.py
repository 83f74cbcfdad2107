"""Names that several parts share: files and metrics of a run (diagnosed without torch), arguments of rewards."""

METRICS = "metrics.jsonl"  # one JSON object per step, in the folder of a run
SETTINGS_FILE = "grpo_config.json"  # where a run keeps its settings, in its folder
# Over all tokens; every other metric of an update is a sum or a mean.
LOGP_DIFFERENCE_MAX = "sampling/logp_difference_max"
# Share of tokens whose log-probabilities differ by more than LOGP_TOLERANCE of trainer/metrics.py.
FRAC_LOGP_DIFFERENCE = "sampling/frac_logp_difference"
TRAINED_REPLIES = "tools/frac_trained"  # share of what environments wrote that the loss counts
TRAINER_ARGUMENTS = ("trainer_state", "log_metric", "log_extra")  # a reward gets those that it takes
