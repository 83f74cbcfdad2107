"""`prove`: every right answer that we know is accepted, every wrong one is rejected and named."""

from grpo_lab.course.proof.trials import Proof, prove, prove_exercise, table
