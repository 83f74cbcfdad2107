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
from grpo_lab.course.exercise import Case, Exercise, at_scale, drawn, extreme, f64, given
from grpo_lab.toys.sorting import repaired_reward, response_logprobs, surrogate_loss


def _input(d, S, P, G, T, V):
    return d.normal(S, P, T, V).log_softmax(-1), d.integers(V, S, P, G, T)


RESPONSE_LOGPROBS = Exercise(
    function=response_logprobs,
    cases=(
        given("one number, two to choose from", f64([[[[0.25, 0.75]]]]).log(), tensor([[[[1]]]])),
        given(
            "two positions, three responses",
            f64([[[[0.25, 0.75], [0.1, 0.9]]]]).log(),
            tensor([[[[0, 0], [0, 1], [1, 1]]]]),
        ),
        given(
            "as many responses as positions",
            f64([[[[0.25, 0.75], [0.1, 0.9]]]]).log(),
            tensor([[[[0, 1], [0, 0]]]]),
        ),
        drawn("two seeds, three prompts", lambda d: _input(d, 2, 3, 2, 4, 5)),
        extreme("a number that is impossible", f64([[[[0.0, -float("inf")]]]]), tensor([[[[0], [1]]]])),
        at_scale("300 positions, 100 numbers", lambda d: _input(d, 1, 3, 5, 300, 100)),
    ),
    gradient_of=("logp",),
    mistakes={
        "group-mixed": {
            "3.22": "drawn_logp = logp.gather(-1, responses.reshape(*logp.shape[:3], -1)).reshape(responses.shape)"
        },
        "not-turned-back": {"3.22": "drawn_logp = rearrange(logp.gather(-1, numbers), 'S P T G -> S P T G')"},
        "frozen": {"3.22": "drawn_logp = rearrange(logp.gather(-1, numbers), 'S P T G -> S P G T').detach()"},
    },
)


RATIO = "(logp - old_logp.detach()).exp()"


def written_out(ratio: str, A: str = "advantages[:, None]") -> dict[str, str]:
    return {
        "3.7": f"return -({A} * logp).mean()",
        "3.8": f"return aggregate(-{ratio} * {A}, mask, 'grpo')",
        "3.6": f"return -torch.minimum({ratio} * {A}, {ratio}.clamp(1 - epsilon, 1 + epsilon) * {A}).mean()",
    }


def _turns(d, B, T, spread=0.5):
    return *d.moved(B, T, scale=spread), d.normal(B)


LOSSES = ("naive", "unclipped", "clipped")
HALF = f64([[0.5]]).log()
UP, DOWN = f64([[0.75]]).log(), f64([[0.25]]).log()  # ratios 3/2 and 1/2
BETTER, WORSE = f64([1.0]), f64([-1.0])

SURROGATE_LOSS = Exercise(
    function=surrogate_loss,
    cases=(
        given("likelier by half, better", UP, HALF, BETTER),
        given("likelier by half, worse", UP, HALF, WORSE),
        given("half as likely, better", DOWN, HALF, BETTER),
        given("half as likely, worse", DOWN, HALF, WORSE),
        given("half as likely, worse, not clipped", DOWN, HALF, WORSE, loss="unclipped"),
        given("two numbers, naive", f64([[0.5, 0.25]]).log(), f64([[0.5, 0.5]]).log(), BETTER, loss="naive"),
        *(drawn(loss, lambda d: _turns(d, 4, 3), loss=loss) for loss in LOSSES),
        drawn("as many responses as numbers, a narrow clip", lambda d: _turns(d, 4, 4), epsilon=0.05),
        extreme("one ratio of e^200, one of e^-200, better", f64([[-1.0, -201.0]]), f64([[-201.0, -1.0]]), BETTER),
        extreme("probabilities of e^-800", f64([[-800.0, -800.5]]), f64([[-800.1, -800.1]]), BETTER),
        at_scale("ratios far from 1", lambda d: _turns(d, 5, 7, 4.0), loss="unclipped"),
    ),
    gradient_of=("logp", "old_logp"),
    mistakes={
        "ratio-quotient": written_out("(logp / old_logp.detach())"),
        "ratio-of-underflowing-probabilities": written_out("(logp.exp() / old_logp.detach().exp())"),
        "old-not-detached": written_out("(logp - old_logp).exp()"),
        "advantage-broadcast": written_out(RATIO, "advantages"),
        "clip-inverted": {"3.6": "return -policy_loss(logp, -advantages, mask, old_logp, epsilon=epsilon)[0]"},
        "clip-one-sided": {
            "3.6": "return -((logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()"
        },
        "clip-only": {"3.6": f"return -({RATIO}.clamp(1 - epsilon, 1 + epsilon) * advantages[:, None]).mean()"},
        "never-clipped": {"3.6": f"return -({RATIO} * advantages[:, None]).mean()"},
        "upside-down": written_out("(old_logp.detach() - logp).exp()"),
    },
)


REPAIRED_REWARD = Exercise(
    function=repaired_reward,
    cases=(
        given("two numbers, in the wrong order", tensor([[1, 2]]), tensor([[2, 1]])),
        given("a number that stands twice in the prompt", tensor([[1, 1, 2]]), tensor([[1, 2, 2]])),
        given("one right number, repeated", tensor([[1, 2, 3]]), tensor([[2, 2, 2]])),
        given("sorted, with a repetition", tensor([[1, 2, 1]]), tensor([[1, 1, 2]])),
        given("nothing right, falling", tensor([[1, 1, 2]]), tensor([[9, 8, 7]])),
        drawn("few numbers, many repetitions", lambda d: (d.integers(3, 8, 4), d.integers(3, 8, 4))),
        extreme("large numbers", tensor([[4000, 0, 4000]]), tensor([[0, 4000, 4001]])),
        at_scale("300 numbers", lambda d: (d.integers(100, 7, 300), d.integers(100, 7, 300))),
    ),
    mistakes={
        "set-inclusion": {"3.9": "included = (copies[0] * (copies[1] > 0)).sum(-1)"},
        "response-counted": {"3.9": "included = (copies[1] * (copies[0] > 0)).sum(-1)"},
        "distinct-numbers": {"3.9": "included = (copies > 0).all(0).sum(-1)"},
        "order-ignored": {"3.11": "rewards = included.float()"},
        "place-by-place": {"3.9": "included = (prompts.sort(1).values == responses).sum(-1)"},
        "strictly-ascending": {"3.11": "rewards = (included + (responses[:, :-1] < responses[:, 1:]).sum(-1)).float()"},
    },
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
    """GRPO, whole: what the policy is and what is paid for are arguments; the loop is yours.

    Args:
        policy: takes prompts (P, T) and returns logits (P, T, V), those of each position of the response. All positions
            are drawn at once, independently of each other.
        optimizer: of the policy's parameters. Each call of its `step` is one update.
        prompts: to draw from, P in each round.
        reward: takes prompts (B, T) and responses (B, T), row by row, and returns rewards (B,).
        rounds: how often responses are sampled.
        G: responses to each prompt, to be compared with each other, Eq. (2.7).
        inner: updates on the responses of a round.
        epsilon: of the clip, Eq. (3.6).
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


class Table(nn.Module):
    """Logits of its own for each first number of a prompt."""

    def __init__(self, numbers: int, length: int, zero: float = 0.0):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([zero] + [0.0] * (numbers - 1)).repeat(numbers, length, 1))

    def forward(self, x):
        return self.logits[x[:, 0]]


class Unlike(Table):
    """A table that begins with a preference of its own at the first position and at the last."""

    def __init__(self, numbers: int, length: int):
        super().__init__(numbers, length)
        with torch.no_grad():
            self.logits[:, 0, 1] = self.logits[:, -1, 3] = 1.8


class Mixing(nn.Module):
    """The policy of the notebook, smaller."""

    def __init__(self, numbers: int, length: int, width: int = 12):
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        self.mix = nn.Linear(length * width, length * width)

    def forward(self, x):
        return self.mix(self.embed(x).flatten(1)).view(*x.shape, -1) @ self.embed.weight.T


class Watch:
    """Watches an optimizer: how many updates it makes, and whether each has its own gradient alone."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.updates, self.arrived, self.alone = 0, False, True
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.fresh = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, fresh in zip(self.parameters, self.fresh, strict=True):
            parameter.register_hook(partial(self.add, fresh))
        optimizer.register_step_pre_hook(self.compare)

    def add(self, fresh: Tensor, gradient: Tensor):
        fresh += gradient

    def compare(self, *_):
        self.updates += 1
        for parameter, fresh in zip(self.parameters, self.fresh, strict=True):
            if parameter.grad is not None and fresh.any():
                used, own = parameter.grad.double(), fresh.double()
                self.arrived = True
                scaled = own * used.norm() / own.norm()  # a clipped gradient is its own, too
                self.alone &= bool((used - scaled).norm() <= 1e-3 * used.norm())
            fresh.zero_()


class CountingReward:
    """A reward that looks at the responses that it scores: a point for each right number, and a bonus beside that."""

    def __init__(self, right: Callable, bonus: Callable, scale: float, start: nn.Module, watch: Watch):
        self.right, self.bonus, self.scale, self.start, self.watch = right, bonus, scale, copy.deepcopy(start), watch
        self.scored, self.seen = 0, set()

    def __call__(self, x, y):
        if not self.scored:
            chances = self.start(x).softmax(-1)
            far = (one_hot(y.long(), chances.shape[-1]).float() - chances).mean(0).abs().amax()  # of T V
            self.astray = bool(far * len(y) ** 0.5 > 2.3)  # more than four and a half standard deviations
        self.scored += len(y)
        self.seen.update(map(tuple, x.tolist()))
        return self.scale * ((y == self.right(x)).float().mean(-1) + self.bonus(x))


def _world(
    label: str,
    policy: Callable,
    right: Callable,
    bonus: Callable = lambda x: 0.0,
    rate=0.3,
    rounds=20,
    inner=3,
    scale=1.0,
    kind=torch.optim.Adam,
    **settings,
) -> Case:
    def build(seed: int) -> tuple[tuple, dict]:
        torch.manual_seed(seed)
        model, prompts = policy(5, 2), torch.cartesian_prod(torch.arange(5), torch.arange(5))
        optimizer = kind(model.parameters(), lr=rate)
        reward = CountingReward(right, bonus, scale, model, Watch(optimizer))
        return (model, optimizer, prompts, reward, rounds), {"inner": inner, **settings}

    return Case(build, label)


def after_learning(result, args, kwargs):
    """Observe the answers that the policy now prefers, and how they came about."""
    policy, _, prompts, reward, rounds, *_ = args
    right = (policy(prompts).argmax(-1) == reward.right(prompts)).float().mean()
    likeliest = policy(prompts).softmax(-1).amax(-1).mean()
    from_all = rounds < 20 or len(reward.seen) > 0.8 * len(prompts)
    return {
        "the number of responses that were rewarded": reward.scored,
        "whether the prompts are drawn from all that there are": from_all,
        "whether the responses are drawn from the policy, each position from its own": bool(reward.scored)
        and not reward.astray,
        "the number of updates": reward.watch.updates,
        "whether any gradient arrived": reward.watch.arrived,
        "whether each update is made with its own gradient alone": reward.watch.alone,
        "whether the policy is worse than chance": bool(right < 0.1),
        "whether most answers are right": bool(right > 0.7),
        "whether the policy is sure of its answers": bool(likeliest > 0.65),
    }


LEARN_BY_GRPO = Exercise(
    function=learn_by_grpo,
    cases=(
        _world("a hundred points for nothing", Table, lambda x: x[:, :1].expand_as(x), lambda x: 100.0),
        _world("the numbers in ascending order", Mixing, lambda x: x.sort().values, rate=0.02, rounds=70),
        _world("prompts that are unlike", Table, lambda x: 4 - x[:, :1].expand_as(x), lambda x: 30.0 * x[:, 0]),
        _world("every response is paid the same", Table, lambda x: x - 9, lambda x: 1.0, rounds=2),
        _world(
            "one round, eighty updates", lambda *size: Table(*size, 1.0), torch.zeros_like, rate=0.1, rounds=1, inner=80
        ),
        _world(
            "a clip so wide that nothing is clipped",
            lambda *size: Table(*size, 1.0),
            torch.zeros_like,
            rate=0.1,
            rounds=1,
            inner=80,
            epsilon=50.0,
        ),
        _world("six prompts, four responses to each", Table, lambda x: x - 9, P=6, G=4, rounds=2),
        _world("two positions that begin unlike", Unlike, lambda x: x - 9, rounds=2),
        _world(
            "a fiftieth of a point, by plain gradient descent",
            Table,
            lambda x: x[:, :1].expand_as(x),
            rate=20.0,
            rounds=20,
            scale=0.02,
            kind=torch.optim.SGD,
        ),
    ),
    observe=after_learning,
    mistakes={
        "ascends": {"backward()": "gain.mean().backward()"},
        "no-centre": {"group_advantages()": 'A = rearrange(R, "(P G) -> P G", G=G)[..., None]'},
        "one-group": {
            "group_advantages()": 'A = rearrange(group_advantages(R[None])[0], "(P G) -> P G", G=G)[..., None]'
        },
        "old-not-frozen": {"exp()": "ratio = (logp - logp).exp()"},
        "unclipped": {"min()": "gain = ratio * A"},
        "not-the-policys": {"sample()": "y = torch.randint(old.logits.shape[-1], old.logits.shape[:-1])"},
        "gradients-added": {"zero_grad()": ""},
        "one-position": {"sample()": "y = Categorical(logits=old.logits[..., :1, :].expand_as(old.logits)).sample()"},
        "not-divided": {
            "group_advantages()": 'A = group_advantages(rearrange(R, "(P G) -> P G", G=G), scale="none")[..., None]'
        },
        "one-update": {"[inner]": "for _ in range(1):"},
        "sampled-in-every-update": {"[inner]": "for _ in range(inner):\n    reward(x.repeat(G, 1), x.repeat(G, 1))"},
        "prompts-and-responses-apart": {
            "reward()": 'R = reward(repeat(x, "P T -> (G P) T", G=G), rearrange(y, "P G T -> (P G) T"))'
        },
    },
)
