r"""Mean and spread of the KL estimators, without sampling."""

from jaxtyping import Float
from torch import Tensor

from grpo_lab.kl import kl_estimate


def gaussian_moments(mu: Float[Tensor, "*M"]) -> dict[str, tuple[Float[Tensor, "*M"], Float[Tensor, "*M"]]]:
    r"""Mean and standard deviation of the estimators when x is drawn from N(0, 1) and the reference is N(mu, 1).

    \mathrm{KL} = \tfrac{1}{2} \mu^2 \tag{4.20}
    \mathrm{E}[k_2] = \mathrm{KL} + \tfrac{1}{8} \mu^4 \tag{4.21}
    \mathrm{Var}[k_1] = \mu^2 \tag{4.22}
    \mathrm{Var}[k_2] = \tfrac{1}{2} \mu^4 + \tfrac{1}{4} \mu^6 \tag{4.23}
    \mathrm{Var}[k_3] = (e^{\mu^2} - 1) - \mu^2 \tag{4.24}

    Args:
        mu: distance of the two means, any shape M.

    Returns:
        "k1", "k2", "k3" -> (mean, standard deviation), each of the shape of mu. The mean of k1 is the true KL.

    Source: d = mu x - mu^2 / 2 is normal with mean -mu^2 / 2 and variance mu^2; the moments follow from those of a
    normal and a log-normal variable.
    """
    kl = mu**2 / 2  # M (4.20)
    mean_k2 = kl + mu**4 / 8  # M (4.21)
    var_k1 = mu**2  # M (4.22)
    var_k2 = mu**4 / 2 + mu**6 / 4  # M (4.23)
    var_k3 = (mu**2).expm1() - mu**2  # M (4.24)
    return {"k1": (kl, var_k1.sqrt()), "k2": (mean_k2, var_k2.sqrt()), "k3": (kl, var_k3.sqrt())}


def enumerated_moments(
    logits: Float[Tensor, "N V"], ref_logits: Float[Tensor, "N V"], estimator: str
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Mean and standard deviation of an estimator over N positions of a language model, without sampling a token.

    m = \frac{1}{N} \sum_n \sum_v \pi_{n,v} \, k_{n,v} \tag{4.25}
    s^2 = \frac{1}{N} \sum_n \sum_v \pi_{n,v} \, k_{n,v}^2 - m^2 \tag{4.26}

    At every position each of the V words counts by its probability: what the sampled mean and spread would be if each
    position were sampled for ever.

    Args:
        logits, ref_logits: of the policy and of the reference at the positions, shape (N, V).
        estimator: as in `kl_estimate`.
    """
    logp = logits.log_softmax(-1)
    k = kl_estimate(logp, ref_logits.log_softmax(-1), estimator)
    mean = (logp.exp() * k).sum(-1).mean()  # scalar (4.25)
    variance = (logp.exp() * k.square()).sum(-1).mean() - mean.square()  # scalar (4.26)
    return mean, variance.sqrt()
