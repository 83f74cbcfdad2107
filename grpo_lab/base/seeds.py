"""Seeds of the streams of random numbers in a run: SEED_STRIDE times the run's seed, plus the step or the epoch."""

# Number of steps, epochs or cases after which a run would repeat the streams of the run with the next seed.
SEED_STRIDE = 1_000_003
