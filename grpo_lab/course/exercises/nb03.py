"""The exercises of notebook 03."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange, repeat
from jaxtyping import Int
from torch import Tensor, nn, tensor
from torch.distributions import Categorical
from torch.nn.functional import one_hot

from grpo_lab.advantages import group_advantages
from grpo_lab.course.exercise import (
    Case,
    Draws,
    Exercise,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    stability_case,
    wrong_lines,
)
from grpo_lab.toys.sorting import repaired_reward, response_logprobs, surrogate_loss


def _logp_and_responses(draws: Draws, S, P, G, T, V):
    return draws.normal(S, P, T, V).log_softmax(-1), draws.integers(V, S, P, G, T)


RESPONSE_LOGPROBS = Exercise(
    function=response_logprobs,
    cases=(
        handwritten_case("one number, two to choose from", f64([[[[0.25, 0.75]]]]).log(), tensor([[[[1]]]])),
        handwritten_case(
            "two positions, three responses",
            f64([[[[0.25, 0.75], [0.1, 0.9]]]]).log(),
            tensor([[[[0, 0], [0, 1], [1, 1]]]]),
        ),
        handwritten_case(
            "as many responses as positions",
            f64([[[[0.25, 0.75], [0.1, 0.9]]]]).log(),
            tensor([[[[0, 1], [0, 0]]]]),
        ),
        drawn_case("two seeds, three prompts", lambda draws: _logp_and_responses(draws, S=2, P=3, G=2, T=4, V=5)),
        stability_case("a number that is impossible", f64([[[[0.0, -float("inf")]]]]), tensor([[[[0], [1]]]])),
        drawn_stability_case(
            "300 positions, 100 numbers", lambda draws: _logp_and_responses(draws, S=1, P=3, G=5, T=300, V=100)
        ),
    ),
    gradient_of=("logp",),
    mistakes=(
        wrong_lines(
            "group-mixed",
            {"3.22": "drawn_logp = logp.gather(-1, responses.reshape(*logp.shape[:3], -1)).reshape(responses.shape)"},
        ),
        wrong_lines(
            "not-turned-back", {"3.22": "drawn_logp = rearrange(logp.gather(-1, numbers), 'S P T G -> S P T G')"}
        ),
        wrong_lines(
            "frozen", {"3.22": "drawn_logp = rearrange(logp.gather(-1, numbers), 'S P T G -> S P G T').detach()"}
        ),
    ),
)


RATIO = "(logp - old_logp.detach()).exp()"


def losses_with(ratio: str, A: str = "advantages[:, None]") -> dict[str, str]:
    """Return lines for all three losses, with the given expressions for the ratio and the advantages."""
    return {
        "3.7": f"return -({A} * logp).mean()",
        "3.8": f"return aggregate(-{ratio} * {A}, mask, 'grpo')",
        "3.6": f"return -torch.minimum({ratio} * {A}, {ratio}.clamp(1 - epsilon, 1 + epsilon) * {A}).mean()",
    }


def _moved_policy(draws: Draws, B, T, spread=0.5):
    return *draws.updated_logps(B, T, scale=spread), draws.normal(B)


LOSSES = ("naive", "unclipped", "clipped")
HALF = f64([[0.5]]).log()
UP, DOWN = f64([[0.75]]).log(), f64([[0.25]]).log()  # ratios 3/2 and 1/2
BETTER, WORSE = f64([1.0]), f64([-1.0])

SURROGATE_LOSS = Exercise(
    function=surrogate_loss,
    cases=(
        handwritten_case("likelier by half, better", UP, HALF, BETTER),
        handwritten_case("likelier by half, worse", UP, HALF, WORSE),
        handwritten_case("half as likely, better", DOWN, HALF, BETTER),
        handwritten_case("half as likely, worse", DOWN, HALF, WORSE),
        handwritten_case("half as likely, worse, not clipped", DOWN, HALF, WORSE, loss="unclipped"),
        handwritten_case("two numbers, naive", f64([[0.5, 0.25]]).log(), f64([[0.5, 0.5]]).log(), BETTER, loss="naive"),
        *(drawn_case(loss, lambda draws: _moved_policy(draws, B=4, T=3), loss=loss) for loss in LOSSES),
        drawn_case(
            "as many responses as numbers, a narrow clip", lambda draws: _moved_policy(draws, B=4, T=4), epsilon=0.05
        ),
        stability_case(
            "one ratio of e^200, one of e^-200, better", f64([[-1.0, -201.0]]), f64([[-201.0, -1.0]]), BETTER
        ),
        stability_case("probabilities of e^-800", f64([[-800.0, -800.5]]), f64([[-800.1, -800.1]]), BETTER),
        drawn_stability_case(
            "ratios far from 1", lambda draws: _moved_policy(draws, B=5, T=7, spread=4.0), loss="unclipped"
        ),
    ),
    gradient_of=("logp", "old_logp"),
    mistakes=(
        wrong_lines("ratio-quotient", losses_with("(logp / old_logp.detach())")),
        wrong_lines("ratio-of-underflowing-probabilities", losses_with("(logp.exp() / old_logp.detach().exp())")),
        wrong_lines("old-not-detached", losses_with("(logp - old_logp).exp()")),
        wrong_lines("advantage-broadcast", losses_with(RATIO, "advantages")),
        wrong_lines(
            "clip-inverted", {"3.6": "return -policy_loss(logp, -advantages, mask, old_logp, epsilon=epsilon)[0]"}
        ),
        wrong_lines(
            "clip-one-sided",
            {"3.6": "return -((logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()"},
        ),
        wrong_lines(
            "clip-only", {"3.6": f"return -({RATIO}.clamp(1 - epsilon, 1 + epsilon) * advantages[:, None]).mean()"}
        ),
        wrong_lines("never-clipped", {"3.6": f"return -({RATIO} * advantages[:, None]).mean()"}),
        wrong_lines("upside-down", losses_with("(old_logp.detach() - logp).exp()")),
    ),
)


REPAIRED_REWARD = Exercise(
    function=repaired_reward,
    cases=(
        handwritten_case("two numbers, in the wrong order", tensor([[1, 2]]), tensor([[2, 1]])),
        handwritten_case("a number that stands twice in the prompt", tensor([[1, 1, 2]]), tensor([[1, 2, 2]])),
        handwritten_case("one right number, repeated", tensor([[1, 2, 3]]), tensor([[2, 2, 2]])),
        handwritten_case("sorted, with a repetition", tensor([[1, 2, 1]]), tensor([[1, 1, 2]])),
        handwritten_case("nothing right, falling", tensor([[1, 1, 2]]), tensor([[9, 8, 7]])),
        drawn_case("few numbers, many repetitions", lambda draws: (draws.integers(3, 8, 4), draws.integers(3, 8, 4))),
        stability_case("large numbers", tensor([[4000, 0, 4000]]), tensor([[0, 4000, 4001]])),
        drawn_stability_case("300 numbers", lambda draws: (draws.integers(100, 7, 300), draws.integers(100, 7, 300))),
    ),
    mistakes=(
        wrong_lines("set-inclusion", {"3.9": "included = (copies[0] * (copies[1] > 0)).sum(-1)"}),
        wrong_lines("response-counted", {"3.9": "included = (copies[1] * (copies[0] > 0)).sum(-1)"}),
        wrong_lines("distinct-numbers", {"3.9": "included = (copies > 0).all(0).sum(-1)"}),
        wrong_lines("order-ignored", {"3.11": "rewards = included.float()"}),
        wrong_lines("place-by-place", {"3.9": "included = (prompts.sort(1).values == responses).sum(-1)"}),
        wrong_lines(
            "strictly-ascending",
            {"3.11": "rewards = (included + (responses[:, :-1] < responses[:, 1:]).sum(-1)).float()"},
        ),
    ),
)


def learn_by_grpo(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    prompts: Int[Tensor, "N T"],
    reward: Callable,
    rounds: int,
    P: int = 16,
    G: int = 8,
    inner: int = 4,
    epsilon: float = 0.2,
) -> None:
    """Train a policy with GRPO: sample responses, score them, compute advantages, and make the updates of each round.

    Args:
        policy: The policy: it takes prompts (P, T) and returns logits (P, T, V), one row of V for each position of the
            response. The numbers at all T positions are drawn at once, independently of each other.
        optimizer: Optimizer of the policy's parameters. Each call of its `step` is one update.
        prompts: The prompts from which P are drawn at random in each round.
        reward: A function that takes prompts (B, T) and responses (B, T), where row b of one belongs to row b of the
            other, and returns rewards (B,).
        rounds: Number of rounds; each samples new responses.
        P: Number of prompts per round.
        G: Number of responses to each prompt. They form the group of Eq. (2.7).
        inner: Number of updates on the responses of a round.
        epsilon: Clip range of the loss, Eq. (3.6).
    """
    for _ in range(rounds):
        x = prompts[torch.randint(len(prompts), (P,))]  # P T
        with torch.no_grad():
            old = Categorical(logits=repeat(policy(x), "P T V -> P G T V", G=G))
            y = old.sample()  # P G T
            old_logp = old.log_prob(y)
            R = reward(repeat(x, "P T -> (P G) T", G=G), rearrange(y, "P G T -> (P G) T"))
            A = group_advantages(rearrange(R, "(P G) -> P G", G=G))[..., None]  # P G 1
        for _ in range(inner):  # [inner]
            logp = Categorical(logits=repeat(policy(x), "P T V -> P G T V", G=G)).log_prob(y)
            ratio = (logp - old_logp).exp()  # P G T
            gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 1 + epsilon) * A)
            optimizer.zero_grad()
            (-gain).mean().backward()
            optimizer.step()


class TablePolicy(nn.Module):
    """A policy with a table of logits (T, V) for each number that a prompt can begin with.

    `zero_logit` is the initial logit of the number 0; all others are 0.
    """

    def __init__(self, numbers: int, length: int, zero_logit: float = 0.0):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([zero_logit] + [0.0] * (numbers - 1)).repeat(numbers, length, 1))

    def forward(self, x):
        return self.logits[x[:, 0]]


class UnevenTablePolicy(TablePolicy):
    """A table policy that initially prefers the number 1 at the first position and the number 3 at the last."""

    def __init__(self, numbers: int, length: int):
        super().__init__(numbers, length)
        with torch.no_grad():
            self.logits[:, 0, 1] = self.logits[:, -1, 3] = 1.8


class SmallPolicy(nn.Module):
    """A smaller version of the notebook's policy, for one seed."""

    def __init__(self, numbers: int, length: int, width: int = 12):
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        self.mix = nn.Linear(length * width, length * width)

    def forward(self, x):
        return self.mix(self.embed(x).flatten(1)).view(*x.shape, -1) @ self.embed.weight.T


class OptimizerWatch:
    """A record of how many updates an optimizer makes, and whether each uses only the gradient computed since the last.

    Attributes:
        updates: Number of updates so far.
        has_gradient: True if some update had a gradient that is not zero.
        uses_new_gradients: True if every update used the gradient computed since the last one, or a multiple of it.
        new_gradients: For each parameter, the sum of the gradients since the last update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.updates, self.has_gradient, self.uses_new_gradients = 0, False, True
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.new_gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, new_gradient in zip(self.parameters, self.new_gradients, strict=True):
            parameter.register_hook(partial(self.add_gradient, new_gradient))
        optimizer.register_step_pre_hook(self.compare_gradients)

    def add_gradient(self, new_gradient: Tensor, gradient: Tensor):
        new_gradient += gradient

    def compare_gradients(self, *_):
        self.updates += 1
        for parameter, new_gradient in zip(self.parameters, self.new_gradients, strict=True):
            if parameter.grad is not None and new_gradient.any():
                used, new = parameter.grad.double(), new_gradient.double()
                self.has_gradient = True
                scaled = new * used.norm() / new.norm()  # clipping changes only the length of a gradient
                self.uses_new_gradients &= bool((used - scaled).norm() <= 1e-3 * used.norm())
            new_gradient.zero_()


class RecordingReward:
    """A reward that records what it scores: the share of right numbers, plus a bonus that only the prompt decides.

    Attributes:
        right_response: Function of prompts (B, T) that returns their right responses (B, T).
        bonus: Function of prompts (B, T) that returns what is added to the reward of every response, (B,).
        scale: Factor of the whole reward.
        initial_policy: Copy of the policy before training.
        watch: Record of the updates.
        num_scored: Number of responses scored so far.
        scored_prompts: All prompts scored so far.
        is_off_policy: True if the first responses do not follow the distribution of the initial policy.
    """

    def __init__(
        self, right_response: Callable, bonus: Callable, scale: float, policy: nn.Module, watch: OptimizerWatch
    ):
        self.right_response, self.bonus, self.scale = right_response, bonus, scale
        self.initial_policy, self.watch = copy.deepcopy(policy), watch
        self.num_scored = 0
        self.scored_prompts: set[tuple[int, ...]] = set()

    def __call__(self, x, y):
        if not self.num_scored:
            probabilities = self.initial_policy(x).softmax(-1)
            differences = (one_hot(y.long(), probabilities.shape[-1]).float() - probabilities).mean(0)  # T V
            # A difference of more than four and a half standard deviations is not due to chance.
            self.is_off_policy = bool(differences.abs().amax() * len(y) ** 0.5 > 2.3)
        self.num_scored += len(y)
        self.scored_prompts.update(map(tuple, x.tolist()))
        return self.scale * ((y == self.right_response(x)).float().mean(-1) + self.bonus(x))


def _training_case(
    label: str,
    make_policy: Callable,
    right_response: Callable,
    bonus: Callable = lambda x: 0.0,
    learning_rate=0.3,
    rounds=20,
    inner=3,
    scale=1.0,
    optimizer_class=torch.optim.Adam,
    **settings,
) -> Case:
    """Return a case that trains on all 25 prompts of two numbers from 0 to 4, with a `RecordingReward`."""

    def build(seed: int) -> tuple[tuple, dict]:
        torch.manual_seed(seed)
        policy, prompts = make_policy(5, 2), torch.cartesian_prod(torch.arange(5), torch.arange(5))
        optimizer = optimizer_class(policy.parameters(), lr=learning_rate)
        reward = RecordingReward(right_response, bonus, scale, policy, OptimizerWatch(optimizer))
        return (policy, optimizer, prompts, reward, rounds), {"inner": inner, **settings}

    return Case(build, label)


def after_learning(result, args, kwargs):
    """Observe what the trained policy answers, and how it was trained."""
    policy, _, prompts, reward, rounds, *_ = args
    accuracy = (policy(prompts).argmax(-1) == reward.right_response(prompts)).float().mean()
    highest_probability = policy(prompts).softmax(-1).amax(-1).mean()
    # With fewer than 20 rounds, some prompts may not have been drawn by chance.
    drawn_from_all = rounds < 20 or len(reward.scored_prompts) > 0.8 * len(prompts)
    return {
        "the number of responses that were rewarded": reward.num_scored,
        "whether the prompts are drawn from all that there are": drawn_from_all,
        "whether the responses are drawn from the policy, each position from its own": bool(reward.num_scored)
        and not reward.is_off_policy,
        "the number of updates": reward.watch.updates,
        "whether any gradient arrived": reward.watch.has_gradient,
        "whether each update is made with its own gradient alone": reward.watch.uses_new_gradients,
        "whether the policy is worse than chance": bool(accuracy < 0.1),
        "whether most answers are right": bool(accuracy > 0.7),
        "whether the policy is sure of its answers": bool(highest_probability > 0.65),
    }


LEARN_BY_GRPO = Exercise(
    function=learn_by_grpo,
    cases=(
        _training_case("a hundred points for nothing", TablePolicy, lambda x: x[:, :1].expand_as(x), lambda x: 100.0),
        _training_case(
            "the numbers in ascending order", SmallPolicy, lambda x: x.sort().values, learning_rate=0.02, rounds=70
        ),
        _training_case(
            "prompts that are unlike", TablePolicy, lambda x: 4 - x[:, :1].expand_as(x), lambda x: 30.0 * x[:, 0]
        ),
        _training_case("every response gets the same reward", TablePolicy, lambda x: x - 9, lambda x: 1.0, rounds=2),
        _training_case(
            "one round, eighty updates",
            partial(TablePolicy, zero_logit=1.0),
            torch.zeros_like,
            learning_rate=0.1,
            rounds=1,
            inner=80,
        ),
        _training_case(
            "a clip so wide that nothing is clipped",
            partial(TablePolicy, zero_logit=1.0),
            torch.zeros_like,
            learning_rate=0.1,
            rounds=1,
            inner=80,
            epsilon=50.0,
        ),
        _training_case("six prompts, four responses to each", TablePolicy, lambda x: x - 9, P=6, G=4, rounds=2),
        _training_case("two positions that begin unlike", UnevenTablePolicy, lambda x: x - 9, rounds=2),
        _training_case(
            "a fiftieth of a point, by plain gradient descent",
            TablePolicy,
            lambda x: x[:, :1].expand_as(x),
            learning_rate=20.0,
            rounds=20,
            scale=0.02,
            optimizer_class=torch.optim.SGD,
        ),
    ),
    observations=after_learning,
    mistakes=(
        wrong_lines("ascends", {"backward()": "gain.mean().backward()"}),
        wrong_lines("no-centre", {"group_advantages()": 'A = rearrange(R, "(P G) -> P G", G=G)[..., None]'}),
        wrong_lines(
            "one-group",
            {"group_advantages()": 'A = rearrange(group_advantages(R[None])[0], "(P G) -> P G", G=G)[..., None]'},
        ),
        wrong_lines("old-not-frozen", {"exp()": "ratio = (logp - logp).exp()"}),
        wrong_lines("unclipped", {"min()": "gain = ratio * A"}),
        wrong_lines("not-the-policys", {"sample()": "y = torch.randint(old.logits.shape[-1], old.logits.shape[:-1])"}),
        wrong_lines("gradients-added", {"zero_grad()": ""}),
        wrong_lines(
            "one-position",
            {"sample()": "y = Categorical(logits=old.logits[..., :1, :].expand_as(old.logits)).sample()"},
        ),
        wrong_lines(
            "not-divided",
            {"group_advantages()": 'A = group_advantages(rearrange(R, "(P G) -> P G", G=G), scale="none")[..., None]'},
        ),
        wrong_lines("one-update", {"[inner]": "for _ in range(1):"}),
        wrong_lines(
            "sampled-in-every-update", {"[inner]": "for _ in range(inner):\n    reward(x.repeat(G, 1), x.repeat(G, 1))"}
        ),
        wrong_lines(
            "prompts-and-responses-apart",
            {"reward()": 'R = reward(repeat(x, "P T -> (G P) T", G=G), rearrange(y, "P G T -> (P G) T"))'},
        ),
    ),
)
