"""Whole settings of each loss in three trainers: what notebook 05b prints, and the tests hold against TRL's source.

A name alone is another algorithm, since what a row leaves out stays at the trainer's default. So each row says all
that differs from the defaults of that trainer, and names a default that it relies on.
"""

from typing import NamedTuple

VERSIONS = {"TRL": "1.16.0", "verl": "0.9.1 and 0.10.0.dev, August 2026", "OpenRLHF": "0.11.0, August 2026"}

GROUP = {"scale_rewards": "group"}
NO_KL = {"beta": 0.0}
SEQUENCE = {"importance_sampling_level": "sequence"}
TRL_DEFAULTS = GROUP | NO_KL | {"loss_type": "dapo", "epsilon": 0.2, "max_completion_length": 512}
TRL_DEFAULTS |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
GAMMA = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
VERL_GRPO = {"algorithm.adv_estimator": "grpo", "rollout.n": 8, "actor.use_kl_loss": False}
VERL_VANILLA = VERL_GRPO | {"actor.policy_loss.loss_mode": "vanilla"}
RLHF_GROUP = {"rollout.n_samples_per_prompt": 8, "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0}


class Member(NamedTuple):
    """One loss of the family.

    trl: settings of `trl.GRPOConfig`, and of `grpo_lab.GRPOConfig`, which makes the same loss of them.
    verl: settings of verl, below `actor_rollout_ref` where they begin with "actor" or "rollout"; None if it has none.
    openrlhf: options of its command line; None likewise.
    """

    ratio: str
    far: str  # what happens far from a ratio of 1
    divided_by: str
    trl: dict
    verl: dict | None
    openrlhf: dict | None
    paper: str


FAMILY = {
    "GRPO": Member(
        "token", "hard clip", "length, then answers",
        GROUP | {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04, "use_bias_correction_kl": False},
        VERL_VANILLA | {"actor.loss_agg_mode": "seq-mean-token-mean", "actor.use_kl_loss": True,
                        "actor.kl_loss_coef": 0.04, "actor.kl_loss_type": "low_var_kl"},
        None, "arXiv 2402.03300",
    ),
    "Dr. GRPO": Member(
        "token", "hard clip", "a constant",
        NO_KL | {"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.2, "max_completion_length": 512},
        VERL_VANILLA | {"algorithm.norm_adv_by_std_in_grpo": False,
                        "actor.loss_agg_mode": "seq-mean-token-sum-norm", "actor.loss_scale_factor": 512},
        None, "arXiv 2503.20783",
    ),
    "DAPO": Member(
        "token", "hard clip, higher ceiling", "tokens of the update",
        GROUP | NO_KL | {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "mask_truncated_completions": True},
        VERL_VANILLA | {"actor.loss_agg_mode": "token-mean", "actor.clip_ratio_low": 0.2,
                        "actor.clip_ratio_high": 0.28},
        RLHF_GROUP | {"actor.policy_loss_type": "ppo", "actor.eps_clip_low_high": "0.2 0.28"},
        "arXiv 2503.14476",
    ),
    "BNPO": Member(
        "token", "hard clip", "tokens of the micro-batch",
        GROUP | NO_KL | {"loss_type": "bnpo", "epsilon": 0.2},
        None, None, "TRL's name",
    ),
    "GSPO": Member(
        "sequence", "hard clip", "length, then answers",
        GROUP | NO_KL | {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4} | SEQUENCE,
        VERL_GRPO | {"actor.policy_loss.loss_mode": "gspo", "actor.loss_agg_mode": "seq-mean-token-mean",
                     "actor.clip_ratio_low": 3e-4, "actor.clip_ratio_high": 4e-4},
        RLHF_GROUP | {"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": "0.0003 0.0004"},
        "arXiv 2507.18071",
    ),
    "LUSPO": Member(
        "sequence", "hard clip", "answers",
        GROUP | NO_KL | {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3} | SEQUENCE,
        VERL_GRPO | {"actor.policy_loss.loss_mode": "gspo", "actor.loss_agg_mode": "seq-mean-token-sum",
                     "actor.clip_ratio_low": 2e-3, "actor.clip_ratio_high": 2.5e-3},
        None, "arXiv 2602.05261",
    ),
    "CISPO": Member(
        "token", "weight bounded, gradient never lost", "tokens of the update",
        GROUP | NO_KL | {"loss_type": "cispo", "epsilon_high": 5.0},
        VERL_GRPO | {"actor.policy_loss.loss_mode": "cispo", "actor.loss_agg_mode": "token-mean",
                     "actor.clip_ratio_low": 1.0, "actor.clip_ratio_high": 4.0},
        None, "arXiv 2506.13585",
    ),
    "SAPO": Member(
        "token", "soft gate", "length, then answers",
        GROUP | NO_KL | {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
        VERL_GRPO | {"actor.policy_loss.loss_mode": "sapo", "actor.tau_pos": 1.0, "actor.tau_neg": 1.05},
        None, "arXiv 2511.20347",
    ),
    "VESPO": Member(
        "product over the answer", "smooth weight", "tokens of the update",
        GROUP | NO_KL | {"loss_type": "vespo"} | GAMMA,
        None, None, "arXiv 2602.10693",
    ),
}  # fmt: skip


def settings_table(*names: str) -> str:
    """Whole settings of these losses in each trainer that has them, as a Markdown table.

    Of TRL, what differs from its default is bold; verl's names are written in full. Each row can be pasted: TRL's as
    keyword arguments, the others on a command line.
    """
    lines = ["| loss | trainer | settings |", "|---|---|---|"]
    for name in names:
        member = FAMILY[name]
        for trainer, form in {"TRL": "{}={!r}", "verl": "{}={}", "OpenRLHF": "--{} {}"}.items():
            settings = getattr(member, trainer.lower()) or {}
            below = ("actor.", "rollout.") if trainer == "verl" else ()
            full = {f"actor_rollout_ref.{key}" if key.startswith(below) else key: settings[key] for key in settings}
            cells = [f"`{form.format(key, value)}`" for key, value in full.items()]
            if trainer == "TRL":
                usual = [(TRL_DEFAULTS | GAMMA).get(key) == value for key, value in settings.items()]
                cells = [cell if same else f"**{cell}**" for cell, same in zip(cells, usual, strict=True)]
            if cells:
                lines.append(f"| {name} | {trainer} | {(', ' if trainer == 'TRL' else ' ').join(cells)} |")
    return "\n".join(lines)
