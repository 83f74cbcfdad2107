"""Wrong answers to the exercise policy_loss. Each hands the right pieces together, but for its one mistake.

The pieces are taken from the library before anybody can put another function in their place.
"""

from inspect import signature

from grpo_lab.kl import kl_estimate
from grpo_lab.objective import (
    aggregate,
    cispo_surrogate,
    clipped_surrogate,
    importance_ratio,
    policy_loss,
    sapo_surrogate,
    vespo_surrogate,
)

_RATIO, _CLIPPED, _CISPO, _SAPO, _VESPO = (
    importance_ratio, clipped_surrogate, cispo_surrogate, sapo_surrogate, vespo_surrogate,
)  # fmt: skip
_AGGREGATE, _KL = aggregate, kl_estimate
_DEFAULTS = {
    name: parameter.default
    for name, parameter in signature(policy_loss).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


def _loss(logp, advantages, mask, old_logp=None, ref_logp=None, sign=-1, kl_sign=1, kl=None, surrogate=None, **given):
    s = _DEFAULTS | given
    old_logp = logp.detach() if old_logp is None else old_logp
    ratio = _RATIO(logp, old_logp, mask, s["importance_sampling_level"])
    values = sign * (surrogate or _surrogate)(s, ratio, logp, old_logp, mask, advantages)
    if s["beta"] > 0:
        term = (kl or _kl)(logp, ref_logp, s["kl_estimator"])
        values = values + kl_sign * s["beta"] * term * (ratio if s["kl_bias_correction"] else 1)
    return _AGGREGATE(values, mask, s["loss_type"], s["max_completion_length"], s["num_items"]), {}


def _surrogate(s, ratio, logp, old_logp, mask, advantages):
    if s["loss_type"] == "cispo":
        return _CISPO(ratio, logp, advantages, s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"])
    if s["loss_type"] == "sapo":
        return _SAPO(ratio, advantages)
    if s["loss_type"] == "vespo":
        return _VESPO(logp, old_logp, mask, advantages)
    return _clip(s, ratio, logp, old_logp, mask, advantages)


def _clip(s, ratio, logp, old_logp, mask, advantages):
    return _CLIPPED(ratio, advantages, s["epsilon"], s["epsilon_high"], s["delta"])


def _kl(logp, ref_logp, estimator):
    return _KL(logp, ref_logp, estimator)


def surrogate_as_loss(*args, **kwargs):
    return _loss(*args, sign=1, **kwargs)


def kl_rewarded(*args, **kwargs):
    return _loss(*args, kl_sign=-1, **kwargs)


def k1(*args, **kwargs):
    return _loss(*args, kl=lambda logp, ref_logp, _: logp - ref_logp.detach(), **kwargs)


def always_k3(*args, **kwargs):
    return _loss(*args, **kwargs | {"kl_estimator": "k3"})


def kl_reversed(*args, **kwargs):
    def kl(logp, ref_logp, estimator):
        d = logp - ref_logp.detach()
        return {"k1": -d, "k2": d.square() / 2, "k3": d.exp() - d - 1}[estimator]

    return _loss(*args, kl=kl, **kwargs)


def kl_over_padding(logp, advantages, mask, old_logp=None, ref_logp=None, **kwargs):
    beta = kwargs.get("beta", 0.0)
    loss, _ = _loss(logp, advantages, mask, old_logp, ref_logp, **kwargs | {"beta": 0.0})
    if beta == 0:
        return loss, {}
    ratio = 1.0
    if kwargs.get("kl_bias_correction"):
        ratio = _RATIO(logp, old_logp, mask, kwargs.get("importance_sampling_level", "token"))
    return loss + beta * (_KL(logp, ref_logp, kwargs.get("kl_estimator", "k3")) * ratio).mean(), {}


def no_bias_correction(*args, **kwargs):
    return _loss(*args, **kwargs | {"kl_bias_correction": False})


def num_items_dropped(*args, **kwargs):
    return _loss(*args, **kwargs | {"num_items": None})


def level_dropped(*args, **kwargs):
    return _loss(*args, **kwargs | {"importance_sampling_level": "token"})


def epsilon_high_dropped(*args, **kwargs):
    return _loss(*args, **kwargs | {"epsilon_high": None})


def high_or_low(*args, **kwargs):
    return _loss(*args, **kwargs | {"epsilon_high": kwargs.get("epsilon_high") or None})


def delta_dropped(*args, **kwargs):
    return _loss(*args, **kwargs | {"delta": None})


def one_surrogate(*args, **kwargs):
    return _loss(*args, surrogate=_clip, **kwargs)
