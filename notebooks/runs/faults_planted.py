"""Define the faults of `record_faults.py`: the runs with a planted fault, and healthy runs (`PARTS`).

A fault is planted as a user would make it: by a setting, by a reward function, or by a wrong line in the loop, which
a patch puts there. The functions and the patches are those of `fault_setups.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fault_setups import (
    BOTH,
    OURS,
    TRL,
    Patch,
    boxed,
    even,
    has_number,
    has_seven,
    k1_for_k3,
    kl_sign,
    mean_near,
    near,
    no_mean,
    no_patch,
    no_reference_precision,
    now_and_then_huge,
    odd,
    policy_as_reference,
    reference_of_another_run,
    sample_with,
    scale_some_losses,
    stale_sampler,
    trained_on_chat,
    trained_on_even,
    two_digits,
    unfreeze_old_logp,
    untrained_reference,
    wordy,
    worked,
)

from grpo_lab.rewards import accuracy_reward, contains_reward, format_reward


@dataclass(frozen=True)
class Plant:
    """A run with a fault, or a healthy run if `finding` is None. `settings` replace those of `COMMON`."""

    finding: str | None
    description: str
    settings: dict = field(default_factory=dict)
    task: str = "guess"
    rewards: tuple[Callable, ...] = (near,)
    patch: Patch = no_patch
    engines: tuple[str, ...] = BOTH
    precision: str | None = None
    seeds: tuple[int, ...] | None = None  # None: the seeds of the part


KL = {"beta": 0.02}
MEASURED = {"eval_steps": 5, "num_generations_eval": 4}
FOUR_UPDATES = {"num_iterations": 4, "max_steps": 16}
SHORT = {"max_steps": 16}
# Part "seen", with three seeds. The rules were tuned on it.
SEEN = {
    "no box": Plant(
        "no_spread_all_wrong", "the reward reads a form that is never written", settings=SHORT, rewards=(boxed,)
    ),
    "any number": Plant("no_spread_all_right", "the reward is for any number", settings=SHORT, rewards=(has_number,)),
    "mean reward": Plant("no_spread_equal", "the batch's mean as each reward", settings=SHORT, rewards=(mean_near,)),
    "entropy sign": Plant(
        "entropy_collapse", "entropy_coef is -1", settings={"entropy_coef": -1.0, "learning_rate": 5e-4}
    ),
    "20 tokens": Plant(
        "truncation",
        "workings of 27 tokens are cut at 20",
        settings=SHORT | {"max_completion_length": 20},
        task="work",
        rewards=(worked,),
    ),
    "paid by length": Plant(
        "length_without_gain",
        "each character is paid, and ten times as well as a right answer",
        settings={"reward_weights": [0.1, 1.0], "max_completion_length": 40, "max_steps": 36, "learning_rate": 6e-4},
        task="chat",
        rewards=(contains_reward, wordy),
        patch=trained_on_chat,
    ),
    "KL sign": Plant(
        "kl_explosion", "the KL term has the wrong sign", settings={"beta": 1.0, "learning_rate": 5e-4}, patch=kl_sign
    ),
    "base as reference": Plant(
        "kl_not_zero_at_start",
        "the policy is a trained checkpoint, the reference the base",
        settings=SHORT | KL,
        patch=untrained_reference,
    ),
    "hidden top_p": Plant(
        "train_inference_mismatch",
        "the sampler has a top_p of 0.8 that no setting shows",
        settings=SHORT,
        patch=sample_with(top_p=0.8),
        engines=(OURS,),
    ),
    "bf16 AdamW": Plant(
        "updates_rounded_away",
        "AdamW on bf16 weights at 5e-5",
        settings={"learning_rate": 5e-5},
        rewards=(even,),
        precision="bf16-naive",
    ),
    "huge reward": Plant(
        "gradient_spikes",
        "one reward in 500 is a thousand times too large",
        settings={"scale_rewards": "none"},
        rewards=(now_and_then_huge,),
    ),
    "log of 0": Plant(
        "nonfinite_steps",
        "the loss is NaN in one update of six",
        settings={"max_nonfinite_steps": 9},
        patch=scale_some_losses(math.nan, 6),
    ),
    "four problems": Plant(
        "held_out_falls_behind",
        "four problems for 40 steps at 1e-3",
        settings={"max_steps": 40, "learning_rate": 1e-3, "generation_batch_size": 32} | MEASURED,
        task="guess few",
    ),
    "ratio of now": Plant(
        "clip_never",
        "old log-probabilities are those of now, four updates",
        settings=FOUR_UPDATES,
        patch=unfreeze_old_logp,
    ),
    "epsilon 3e-4": Plant(
        "clip_always",
        "GSPO's epsilon on tokens, four updates",
        settings=FOUR_UPDATES | {"epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "rate 1e-2": Plant(
        "learning_rate_too_high", "learning rate 1e-2", settings={"learning_rate": 1e-2, "max_completion_length": 24}
    ),
    "rate 1e-7": Plant(
        "learning_rate_too_low", "learning rate 1e-7", settings={"learning_rate": 1e-7}, rewards=(even,)
    ),
    "a box, too": Plant("reward_component_flat", "one of two rewards is never earned", rewards=(even, boxed)),
    "odd outvotes even": Plant(
        "reward_component_falls",
        "odd numbers earn three times what even ones do",
        settings={"reward_weights": [0.3, 1.0]},
        rewards=(even, odd),
    ),
    "own reference": Plant(
        "kl_flat", "the reference is the policy", settings=KL, rewards=(even,), patch=policy_as_reference
    ),
    "k1": Plant("kl_negative", "k1 in place of k3", settings=KL, rewards=(even,), patch=k1_for_k3, engines=(OURS,)),
    "no mean": Plant(
        "advantages_not_centred", "no mean is subtracted", rewards=(even,), patch=no_mean, engines=(OURS,)
    ),
}


def healthy(
    description: str,
    settings: dict,
    task: str = "guess",
    rewards: tuple = (near,),
    engines: tuple = BOTH,
    seed: int = 3,
) -> Plant:
    return Plant(None, description, settings, task, rewards, engines=engines, seeds=(seed,))


SUMS = {"max_completion_length": 32, "generation_batch_size": 32}
SEEN |= {
    "near": healthy("nearness", settings={}),
    "even": healthy("even numbers", settings={}, rewards=(even,)),
    "near, 60 steps": healthy("nearness, longer", settings={"max_steps": 60, "num_generations": 4}),
    "seven": healthy("a seven in the number", settings={"num_generations": 16}, rewards=(has_seven,)),
    "sums": healthy("sums", settings=SUMS, task="sums", rewards=(accuracy_reward,)),
    "work": healthy("right answers after a working", settings=SUMS | SHORT, task="work", rewards=(worked,)),
    "chat": healthy(
        "four questions",
        settings={"generation_batch_size": 32, "max_completion_length": 24},
        task="chat",
        rewards=(contains_reward,),
        engines=(OURS,),
    ),
    "KL term": healthy("a KL term", settings={"beta": 0.04}, rewards=(even,)),
    "KL term, four updates": healthy("a KL term, four updates", settings=KL | FOUR_UPDATES | {"learning_rate": 1e-4}),
    "KL measured": healthy("KL measured", settings={"log_kl": True}, rewards=(has_seven,), engines=(OURS,)),
    "held out": healthy("held-out sums measured", settings=MEASURED),
    "two rewards": healthy("nearness and parity", settings={}, rewards=(near, even)),
    "dr_grpo": healthy("loss dr_grpo", settings={"loss_type": "dr_grpo", "scale_rewards": "none"}, rewards=(even,)),
    "sequence": healthy(
        "ratio of sequences, two updates",
        settings={"importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.02},
    ),
    "slow": healthy("a tenth of the rate", settings={"learning_rate": 5e-5}, rewards=(even,)),
    "10 steps": healthy("ten steps", settings={"max_steps": 10, "learning_rate": 4e-4}, rewards=(even,)),
    "any rate, linear": healthy("a rate that falls to 0", settings={"lr_scheduler_type": "linear", "warmup_steps": 4}),
    "autocast": healthy("bf16 arithmetic", settings={"bf16": True}, rewards=(even,)),
}
# Part "kept": three seeds of other tasks and settings. The rules as tuned on "seen" alone found 49 of its 60 faults
# with our trainer and 41 of 54 with TRL's, without a false alarm in its 45 healthy runs. Then they were tuned on both
# parts.
KEPT = {
    "stories": Plant(
        "no_spread_all_wrong",
        "problems far too hard",
        settings={"max_steps": 12, "max_completion_length": 32, "generation_batch_size": 32},
        task="stories",
        rewards=(accuracy_reward,),
    ),
    "learnt before": Plant(
        "no_spread_all_right",
        "problems that the policy has learnt",
        settings=SHORT,
        rewards=(even,),
        patch=trained_on_even,
    ),
    "greedy": Plant("no_spread_equal", "top_k is 1", settings={"max_steps": 20, "top_k": 1}),
    "raw rewards": Plant(
        "entropy_collapse",
        "rewards are used raw",
        settings={"advantage": "none", "learning_rate": 2e-3, "max_steps": 80},
        engines=(OURS,),
    ),
    "entropy sign, sevens": Plant(
        "entropy_collapse",
        "entropy_coef is -2",
        settings={"entropy_coef": -2.0, "learning_rate": 4e-4, "max_steps": 40},
        rewards=(near, has_seven),
    ),
    "8 tokens": Plant(
        "truncation",
        "replies of eleven tokens are cut at eight",
        settings={"max_steps": 20, "max_completion_length": 8, "generation_batch_size": 32},
        task="chat",
        rewards=(contains_reward,),
    ),
    "paid by length, measured": Plant(
        "length_without_gain",
        "each character is paid, too; the policy explores more",
        settings={
            "temperature": 1.3,
            "reward_weights": [0.2, 1.0],
            "max_completion_length": 40,
            "max_steps": 36,
            "learning_rate": 4e-4,
        }
        | MEASURED,
        task="chat",
        rewards=(contains_reward, wordy),
        patch=trained_on_chat,
    ),
    "rate 3e-3, KL": Plant(
        "kl_explosion",
        "learning rate 3e-3 beside a KL term",
        settings=KL | {"learning_rate": 3e-3, "max_completion_length": 24},
    ),
    "fp32 reference": Plant(
        "kl_not_zero_at_start",
        "bf16 policy, float32 reference",
        settings=SHORT | KL,
        patch=no_reference_precision,
        engines=(TRL,),
        precision="bf16-naive",
    ),
    "another's reference": Plant(
        "kl_not_zero_at_start",
        "the reference is a checkpoint of another run",
        settings=SHORT | KL,
        rewards=(even,),
        patch=reference_of_another_run,
    ),
    "sampler at 0.7": Plant(
        "train_inference_mismatch",
        "the sampler's temperature is 0.7, the trainer's 1",
        settings={"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32},
        task="sums",
        rewards=(accuracy_reward,),
        patch=sample_with(temperature=0.7),
        engines=(OURS,),
    ),
    "stale sampler": Plant(
        "train_inference_mismatch",
        "the sampler keeps the first weights",
        rewards=(even,),
        patch=stale_sampler,
        engines=(OURS,),
    ),
    "bf16 AdamW, sevens": Plant(
        "updates_rounded_away",
        "AdamW on bf16 weights at 3e-5",
        settings={"learning_rate": 3e-5, "num_generations": 16, "max_steps": 40},
        rewards=(has_seven,),
        precision="bf16-naive",
    ),
    "undivided": Plant(
        "gradient_spikes",
        "one loss in twelve is 60 times too large",
        settings={"max_steps": 40},
        rewards=(even, near),
        patch=scale_some_losses(60.0, 12),
    ),
    "log of 0, rare": Plant(
        "nonfinite_steps",
        "the loss is NaN in one update of 13",
        settings={"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32},
        task="work",
        rewards=(worked,),
        patch=scale_some_losses(math.nan, 13),
    ),
    "answers shifted": Plant(
        "held_out_falls_behind",
        "the answers of the training problems are 40 too large",
        settings={"max_steps": 50, "learning_rate": 5e-4} | MEASURED,
        task="guess shifted",
    ),
    "no clip range": Plant(
        "clip_never",
        "epsilon 1, epsilon_high 1e9, four updates",
        settings=FOUR_UPDATES | {"epsilon": 1.0, "epsilon_high": 1e9, "learning_rate": 4e-4},
    ),
    "epsilon 1e-3": Plant(
        "clip_always", "epsilon 1e-3, eight updates", settings={"num_iterations": 8, "max_steps": 12, "epsilon": 1e-3}
    ),
    "rate 3e-3": Plant(
        "learning_rate_too_high",
        "learning rate 3e-3",
        settings={"learning_rate": 3e-3, "max_completion_length": 32, "generation_batch_size": 32},
        task="sums",
        rewards=(accuracy_reward,),
    ),
    "rate 1e-6": Plant(
        "learning_rate_too_low",
        "learning rate 1e-6",
        settings={"learning_rate": 1e-6, "num_generations": 16, "max_steps": 24},
        rewards=(has_seven,),
    ),
    "two digits outvote nearness": Plant(
        "reward_component_falls",
        "two digits earn five times what nearness does",
        settings={"reward_weights": [0.2, 1.0], "max_steps": 40, "learning_rate": 4e-4},
        rewards=(near, two_digits),
    ),
    "own reference, four updates": Plant(
        "kl_flat",
        "the reference is the policy",
        settings=KL | FOUR_UPDATES,
        rewards=(has_seven,),
        patch=policy_as_reference,
    ),
    "k1, four updates": Plant(
        "kl_negative", "k1 in place of k3", settings={"beta": 0.1} | FOUR_UPDATES, patch=k1_for_k3, engines=(OURS,)
    ),
    "no mean, sums": Plant(
        "advantages_not_centred",
        "no mean is subtracted",
        settings={"max_completion_length": 32, "generation_batch_size": 32},
        task="sums",
        rewards=(accuracy_reward,),
        patch=no_mean,
        engines=(OURS,),
    ),
    "format of a rest": Plant(
        "reward_component_flat",
        "the format is asked of a reply that had begun",
        settings={"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32},
        task="work",
        rewards=(worked, format_reward),
    ),
    "near, fast": healthy("nearness", settings={"learning_rate": 5e-4}, seed=14),
    "sums, 16 a group": healthy(
        "sums", settings=SUMS | {"num_generations": 16}, task="sums", rewards=(accuracy_reward,), seed=14
    ),
    "sums, half the rate": healthy(
        "sums",
        settings=SUMS | {"learning_rate": 1e-4, "max_steps": 40},
        task="sums",
        rewards=(accuracy_reward,),
        seed=15,
    ),
    "work, KL": healthy("workings, a KL term", settings=SUMS | {"beta": 0.01}, task="work", rewards=(worked,), seed=15),
    "chat, 50 steps": healthy(
        "four questions",
        settings={"generation_batch_size": 32, "max_completion_length": 32, "max_steps": 50},
        task="chat",
        rewards=(contains_reward,),
        seed=16,
    ),
    "seven, slow": healthy(
        "a seven, slowly",
        settings={"learning_rate": 3e-5, "num_generations": 16, "max_steps": 40},
        rewards=(has_seven,),
        seed=11,
    ),
    "150 steps": healthy("nearness for long", settings={"max_steps": 150}, seed=17),
    "rloo": healthy("rloo", settings={"advantage": "rloo"}, rewards=(even,), engines=(OURS,), seed=17),
    "cispo": healthy("loss cispo", settings={"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2}, seed=18),
    "sapo": healthy("loss sapo", settings={"loss_type": "sapo", "num_iterations": 2}, rewards=(even,), seed=18),
    "grpo": healthy(
        "loss grpo, micro-batches",
        settings={"loss_type": "grpo", "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4},
        seed=18,
    ),
    "bnpo": healthy(
        "loss bnpo, batch deviation",
        settings={"loss_type": "bnpo", "scale_rewards": "batch"},
        rewards=(has_seven,),
        seed=18,
    ),
    "eight updates": healthy(
        "eight updates", settings={"num_iterations": 8, "learning_rate": 1e-4, "max_steps": 16}, seed=19
    ),
    "two batches": healthy(
        "two updates of half a batch", settings={"per_device_train_batch_size": 32}, rewards=(even,), seed=19
    ),
    "cooler": healthy("temperature 0.8", settings={"temperature": 0.8}, rewards=(has_seven,), seed=20),
    "warmer": healthy("temperature 1.2", settings={"temperature": 1.2}, seed=20),
    "weighted": healthy(
        "two rewards, weighted", settings={"reward_weights": [1.0, 0.2]}, rewards=(near, has_seven), seed=21
    ),
    "held out, sums": healthy(
        "held-out workings", settings=SUMS | {"max_steps": 20} | MEASURED, task="work", rewards=(worked,), seed=21
    ),
    "entropy bonus": healthy("an entropy bonus", settings={"entropy_coef": 0.01}, rewards=(even,), seed=22),
    "cosine": healthy(
        "a cosine", settings={"lr_scheduler_type": "cosine", "warmup_steps": 3, "learning_rate": 4e-4}, seed=22
    ),
    "KL, strong": healthy("a strong KL term", settings={"beta": 0.2}, rewards=(has_seven,), seed=23),
    "12 steps": healthy(
        "twelve steps", settings={"max_steps": 12, "learning_rate": 5e-4}, rewards=(has_seven,), seed=23
    ),
    "autocast, chat": healthy(
        "bf16 arithmetic",
        settings={"bf16": True, "generation_batch_size": 32, "max_completion_length": 32},
        task="chat",
        rewards=(contains_reward,),
        seed=24,
    ),
}
# Part "fresh", with another seed: the missed runs of "kept", by engine, and healthy runs.
FRESH = {
    OURS: (
        "answers shifted",
        "no clip range",
        "entropy sign, sevens",
        "rate 3e-3, KL",
        "near",
        "even",
        "two rewards",
        "KL term",
        "held out",
        "held out, sums",
        "chat, 50 steps",
        "KL, strong",
        "eight updates",
        "sums, half the rate",
        "KL term, four updates",
        "weighted",
    ),
    TRL: (
        "greedy",
        "entropy sign, sevens",
        "fp32 reference",
        "answers shifted",
        "rate 3e-3, KL",
        "held out",
        "dr_grpo",
        "seven, slow",
        "two rewards",
        "chat, 50 steps",
        "rate 1e-6",
        "no clip range",
    ),
}
# Part "new", recorded after the rules of the fourth edition were fixed, with other tasks, learning rates, batches and
# seeds than above. With seed 51 these rules found 10 of 10 faults and gave one false alarm in 32 healthy runs, for a
# slow run of 16 steps. The rule was changed to wait for 24 steps, and the part was recorded with another seed.
WIDE, HALF, SLOW = {"generation_batch_size": 128}, {"learning_rate": 1e-4}, {"learning_rate": 5e-5, "max_steps": 16}
NEW = {
    "no mean, sevens": Plant(
        "advantages_not_centred",
        "no mean is subtracted",
        settings=HALF,
        rewards=(has_seven,),
        patch=no_mean,
        engines=(OURS,),
    ),
    "own reference, wide": Plant(
        "kl_flat",
        "the reference is the policy",
        settings={"beta": 0.1} | WIDE,
        rewards=(odd,),
        patch=policy_as_reference,
    ),
    "k1, two updates": Plant(
        "kl_negative",
        "k1 in place of k3",
        settings={"beta": 0.05, "num_iterations": 2} | HALF,
        rewards=(has_seven,),
        patch=k1_for_k3,
        engines=(OURS,),
    ),
    "two digits outvote, wide": Plant(
        "reward_component_falls",
        "two digits earn four times what nearness does",
        settings={"reward_weights": [0.25, 1.0]} | WIDE | HALF,
        rewards=(near, two_digits),
    ),
    "rate 1e-9": Plant(
        "learning_rate_too_low", "learning rate 1e-9", settings={"learning_rate": 1e-9, "max_steps": 16}
    ),
    "entropy sign, half the rate": Plant(
        "entropy_collapse",
        "entropy_coef is -3",
        settings={"entropy_coef": -3.0, "max_steps": 40} | HALF,
        engines=(TRL,),
    ),
    "hidden top_k": Plant(
        "train_inference_mismatch",
        "the sampler has a top_k of 5",
        settings=SHORT,
        rewards=(odd,),
        patch=sample_with(top_k=5),
        engines=(OURS,),
    ),
    "ratio of now, three": Plant(
        "clip_never",
        "old log-probabilities are those of now, three updates",
        settings={"num_iterations": 3, "max_steps": 20},
        rewards=(even,),
        patch=unfreeze_old_logp,
        engines=(TRL,),
    ),
    "16 tokens": Plant(
        "truncation",
        "workings of 27 tokens are cut at 16",
        settings=SHORT | WIDE | {"max_completion_length": 16},
        task="work",
        rewards=(worked,),
        engines=(TRL,),
    ),
}
NEW |= {
    "quarter of the rate": healthy("a quarter of the rate", settings=SLOW),
    "quarter of the rate, sums": healthy(
        "a quarter of the rate, sums", settings=SUMS | SLOW, task="sums", rewards=(accuracy_reward,)
    ),
    "half the rate": healthy("half the rate", settings=HALF),
    "half the rate, even": healthy("half the rate, even numbers", settings=HALF | {"max_steps": 60}, rewards=(even,)),
    "wide": healthy("twice the batch", settings=WIDE),
    "wide, sevens": healthy("twice the batch, sevens", settings=WIDE, rewards=(has_seven,)),
    "odd": healthy("odd numbers", settings={}, rewards=(odd,)),
    "two digits": healthy("two digits", settings=HALF, rewards=(two_digits,)),
    "odd, KL": healthy("odd numbers, a KL term", settings={"beta": 0.05}, rewards=(odd,)),
    "near, KL, two updates": healthy("a KL term, two updates", settings={"beta": 0.1, "num_iterations": 2} | HALF),
    "sums, 40 steps": healthy(
        "sums, longer", settings=SUMS | {"max_steps": 40}, task="sums", rewards=(accuracy_reward,)
    ),
    "work, half the rate": healthy(
        "right answers after a working", settings=SUMS | HALF, task="work", rewards=(worked,)
    ),
    "near and odd": healthy("nearness and parity", settings=HALF, rewards=(near, odd)),
    "grpo": healthy("loss grpo", settings={"loss_type": "grpo"}, rewards=(odd,)),
    "odd, held out": healthy("held-out problems measured", settings=MEASURED | HALF, rewards=(odd,)),
}
# Part "last", recorded after the last change of a rule, with settings that no run above has. A trial with seed 83 (our
# trainer, 10 of 12 faults found) gave a false alarm for a slow run of 24 steps; learning_rate_too_low was changed to
# report only small steps if no KL is logged. Seed 97 gave 17 of 19 faults and no false alarm in 30 healthy runs. Then
# the same rule was changed to wait for the end of a warm-up, and this part was recorded.
LAST = {
    "no mean, two digits": Plant(
        "advantages_not_centred",
        "no mean is subtracted",
        settings={"learning_rate": 2.5e-4, "max_steps": 20, "generation_batch_size": 96},
        rewards=(two_digits,),
        patch=no_mean,
        engines=(OURS,),
    ),
    "own reference, near": Plant(
        "kl_flat",
        "the reference is the policy",
        settings={"beta": 0.07, "learning_rate": 3e-4, "max_steps": 26},
        patch=policy_as_reference,
    ),
    "k1, near": Plant(
        "kl_negative",
        "k1 in place of k3",
        settings={"beta": 0.03, "max_steps": 20, "learning_rate": 1.5e-4},
        patch=k1_for_k3,
        engines=(OURS,),
    ),
    "odd outvotes even": Plant(
        "reward_component_falls",
        "odd numbers earn twice what even ones do",
        settings={"reward_weights": [0.5, 1.0], "max_steps": 26, "learning_rate": 2.5e-4},
        rewards=(even, odd),
    ),
    "rate 5e-8": Plant(
        "learning_rate_too_low",
        "learning rate 5e-8",
        settings={"learning_rate": 5e-8, "max_steps": 26, "num_generations": 16},
        rewards=(two_digits,),
    ),
    "entropy sign, near": Plant(
        "entropy_collapse",
        "entropy_coef is -2.5",
        settings={"entropy_coef": -2.5, "max_steps": 28, "learning_rate": 3e-4},
        rewards=(two_digits, near),
    ),
    "hidden temperature": Plant(
        "train_inference_mismatch",
        "the sampler's temperature is 0.6",
        settings={"max_steps": 14},
        rewards=(odd,),
        patch=sample_with(temperature=0.6),
        engines=(OURS,),
    ),
    "ratio of now, five": Plant(
        "clip_never",
        "old log-probabilities are those of now, five updates",
        settings={"num_iterations": 5, "max_steps": 14},
        rewards=(two_digits,),
        patch=unfreeze_old_logp,
    ),
    "14 tokens": Plant(
        "truncation",
        "workings of 27 tokens are cut at 14",
        settings={"max_steps": 14, "max_completion_length": 14},
        task="work",
        rewards=(worked,),
        engines=(OURS,),
    ),
    "NaN, seven": Plant(
        "nonfinite_steps",
        "the loss is NaN in one update of seven",
        settings={"max_nonfinite_steps": 9, "max_steps": 20},
        rewards=(two_digits,),
        patch=scale_some_losses(math.nan, 7),
        engines=(OURS,),
    ),
    "bf16 AdamW, two digits": Plant(
        "updates_rounded_away",
        "AdamW on bf16 weights at 1e-5",
        settings={"learning_rate": 1e-5, "max_steps": 28},
        rewards=(two_digits,),
        precision="bf16-naive",
    ),
    "two digits, a box, too": Plant(
        "reward_component_flat",
        "one of two rewards is never earned",
        settings={"learning_rate": 1.5e-4, "max_steps": 18},
        rewards=(two_digits, boxed),
    ),
}
LAST |= {
    "near, 2.5e-4": healthy("nearness", settings={"max_steps": 20, "learning_rate": 2.5e-4}),
    "near, 6e-5": healthy("nearness, slowly", settings={"max_steps": 24, "learning_rate": 6e-5}),
    "odd, 4e-5": healthy("odd numbers, slowly", settings={"max_steps": 26, "learning_rate": 4e-5}, rewards=(odd,)),
    "two digits, 6e-5": healthy(
        "two digits, slowly", settings={"max_steps": 20, "learning_rate": 6e-5}, rewards=(two_digits,)
    ),
    "even, batch 96": healthy("even numbers", settings={"max_steps": 20, "generation_batch_size": 96}, rewards=(even,)),
    "seven, 4 a group": healthy(
        "sevens", settings={"max_steps": 24, "generation_batch_size": 32, "num_generations": 4}, rewards=(has_seven,)
    ),
    "near, 0.9": healthy("temperature 0.9", settings={"max_steps": 20, "temperature": 0.9}),
    "two digits, 1.15": healthy(
        "temperature 1.15", settings={"max_steps": 20, "temperature": 1.15}, rewards=(two_digits,)
    ),
    "sums, 2.5e-4": healthy(
        "sums", settings=SUMS | {"max_steps": 18, "learning_rate": 2.5e-4}, task="sums", rewards=(accuracy_reward,)
    ),
    "sums, KL": healthy(
        "sums, a KL term", settings=SUMS | {"max_steps": 16, "beta": 0.03}, task="sums", rewards=(accuracy_reward,)
    ),
    "work, 1.5e-4": healthy(
        "right answers after a working",
        settings=SUMS | {"learning_rate": 1.5e-4, "max_steps": 16},
        task="work",
        rewards=(worked,),
    ),
    "odd, KL, two updates": healthy(
        "a KL term, two updates", settings={"max_steps": 20, "beta": 0.06, "num_iterations": 2}, rewards=(odd,)
    ),
    "two digits and odd": healthy(
        "two rewards", settings={"max_steps": 20, "learning_rate": 1.5e-4}, rewards=(two_digits, odd)
    ),
    "near, dr_grpo": healthy(
        "loss dr_grpo",
        settings={"max_steps": 24, "loss_type": "dr_grpo", "scale_rewards": "none", "learning_rate": 1.5e-4},
    ),
    "even, held out": healthy(
        "held-out problems measured", settings=MEASURED | {"max_steps": 20, "learning_rate": 1.5e-4}, rewards=(even,)
    ),
}


def with_seed(plants: dict[str, Plant], seed: int) -> dict[str, Plant]:
    return {name: replace(plant, seeds=(seed,)) for name, plant in plants.items()}


def reseeded_misses(seed: int) -> dict[str, Plant]:
    """Return the runs of `FRESH`, each with the engines listed there."""
    runs = {name: plant for name, plant in (SEEN | KEPT).items() if name in FRESH[OURS] + FRESH[TRL]}
    return {
        name: replace(plant, engines=tuple(engine for engine in BOTH if name in FRESH[engine]), seeds=(seed,))
        for name, plant in runs.items()
    }


# A part that led to a change of a rule is no test of the rules any more, so the next part was recorded.
PARTS = {
    "seen": SEEN,
    "kept": KEPT,
    "fresh": reseeded_misses(seed=41),
    "new": with_seed(NEW, 61),
    "last": with_seed(LAST, 131),
}
