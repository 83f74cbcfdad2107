"""One seed for each stream of random numbers of a run: SEED_STRIDE times the run's seed, plus the step or epoch."""

SEED_STRIDE = 1_000_003  # steps, epochs or cases until the streams of two neighbouring seeds meet
