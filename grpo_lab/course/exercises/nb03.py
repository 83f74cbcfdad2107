"""The exercises of notebook 03."""

from collections.abc import Callable

import torch
from einops import rearrange, repeat
from jaxtyping import Int
from torch import Tensor, nn, tensor
from torch.distributions import Categorical

from grpo_lab.advantages import group_advantages
from grpo_lab.course.exercise import Case, Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.toys.sorting import kl_penalty, repaired_reward, response_logprobs, surrogate_loss


def _input(d, S, P, G, T, V):
    return d.normal(S, P, T, V).log_softmax(-1), d.integers(V, S, P, G, T)


RESPONSE_LOGPROBS = Exercise(
    function=response_logprobs,
    points=3,
    minutes=4,
    difficulty=2,
    task="Look up how likely the policy thought each number that was drawn. One forward pass serves all G responses of "
    "a prompt, so the axes need care.",
    hints=(
        "Write both shapes below each other. Which axis does each have that the other lacks, and which of them is "
        "looked up?",
        "All G responses of a prompt read from the same table of T rows. `gather` looks up along the last axis, and "
        "wants every other axis to mean the same in both tensors.",
        "`reshape` keeps the numbers in their order and cuts them differently; moving an axis is another operation. "
        "`rearrange` says which one you mean.",
    ),
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
    misconceptions={
        "group-mixed": Misconception(
            "The shapes fit, but `reshape` does not move an axis: it cuts the same row of numbers at other places, so "
            "numbers of different responses end up at one position. For G = 3 and T = 2, write down where each of the "
            "six numbers lands.",
            {"3.15": "taken = logp.gather(-1, responses.reshape(*logp.shape[:3], -1)).reshape(responses.shape)"},
        ),
        "not-turned-back": Misconception(
            "The right numbers, with positions and responses in each other's places. Where there are as many responses "
            "as positions, no shape will tell you. In which order do the axes of the result stand?",
            {"3.15": "taken = rearrange(logp.gather(-1, numbers), 'S P T G -> S P T G')"},
        ),
        "response-as-position": Misconception(
            "You look up with G standing where the table has T: response i reads from row i of the table, whatever its "
            "position. It runs as long as there are no more responses than positions. Which axis has to be moved "
            "before the look-up?",
            {"3.15": "taken = logp.gather(-1, responses)"},
        ),
        "frozen": Misconception(
            "The values are right, but no gradient reaches the policy. That is what you store as `old_logp`; for the "
            "update these numbers have to stay attached.",
            {"3.15": "taken = rearrange(logp.gather(-1, numbers), 'S P T G -> S P G T').detach()"},
        ),
    },
)


RATIO = "(logp - old_logp.detach()).exp()"


def written_out(ratio: str, A: str = "advantages[:, None]") -> dict[str, str]:
    return {
        "3.16": f"return -({A} * logp).mean()",
        "3.17": f"return aggregate(-{ratio} * {A}, mask, 'grpo')",
        "3.18": f"return -torch.minimum({ratio} * {A}, {ratio}.clamp(1 - epsilon, 1 + epsilon) * {A}).mean()",
    }


def _turns(d, B, T, spread=0.5):
    return *d.moved(B, T, scale=spread), d.normal(B)


LOSSES = ("naive", "unclipped", "clipped")
HALF = f64([[0.5]]).log()
UP, DOWN = f64([[0.75]]).log(), f64([[0.25]]).log()  # ratios 3/2 and 1/2
BETTER, WORSE = f64([1.0]), f64([-1.0])

SURROGATE_LOSS = Exercise(
    function=surrogate_loss,
    points=5,
    minutes=8,
    difficulty=3,
    task="Write the three losses of the notebook. They agree at the first inner step; what each does at the second "
    "makes the difference between a run that learns and one that breaks.",
    hints=(
        "One advantage belongs to a whole response. Which axis has to be added to it, so that it meets all numbers of "
        "that response, and of no other?",
        "The ratio compares probabilities, and you have their logarithms. What turns a difference of logarithms into a "
        "ratio? And which of the two is a stored number?",
        "For 'clipped', compute both terms of the minimum for every number, each already multiplied by the advantage. "
        "Then take the smaller, number by number.",
    ),
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
    misconceptions={
        "ratio-quotient": Misconception(
            "You divide one log-probability by the other. Both are negative: when a number becomes likelier, your "
            "'ratio' falls, so training runs backwards. How is a quotient of probabilities written with logarithms?",
            written_out("(logp / old_logp.detach())"),
        ),
        "ratio-of-underflowing-probabilities": Misconception(
            "Right on paper: you make probabilities of both logarithms and divide. A probability of e^-800 is zero to "
            "the computer, and so your ratio is 0 / 0. Which operation on the logarithms comes to the same as a "
            "quotient, and needs neither probability?",
            written_out("(logp.exp() / old_logp.detach().exp())"),
        ),
        "old-not-detached": Misconception(
            "The values are right, but a gradient flows into `old_logp`. At the first inner step old and new are the "
            "same network: the two gradients cancel and nothing is learned. What are the old log-probabilities, a "
            "network or numbers?",
            written_out("(logp - old_logp).exp()"),
        ),
        "advantage-broadcast": Misconception(
            "The advantages meet the wrong axis: advantage j is multiplied with position j of *every* response. With "
            "as many responses as positions that runs without complaint; otherwise it crashes, and you are lucky. "
            "Which shape says 'one per row'?",
            written_out(RATIO, "advantages"),
        ),
        "clip-inverted": Misconception(
            "You take the larger of the two terms. Then the clip acts where the policy has moved the wrong way, and "
            "lets it run where it has gone far enough. Which of the two is the cautious one?",
            {"3.18": "return -policy_loss(logp, -advantages, mask, old_logp, epsilon=epsilon)[0]"},
        ),
        "clip-one-sided": Misconception(
            "You compare the ratios before the advantage is multiplied in. For a negative advantage, smaller and "
            "larger change places. Try ratio 1/2 with advantage -1: should that number still be pushed down?",
            {"3.18": "return -((logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()"},
        ),
    },
)


REPAIRED_REWARD = Exercise(
    function=repaired_reward,
    points=4,
    minutes=4,
    difficulty=2,
    task="Close the hole: a number that stands twice in the prompt has to stand twice in the response. A reward is "
    "optimised as it is written, so write what you mean.",
    hints=(
        "For each number: how often does it stand in the prompt, how often in the response? Which of the two counts "
        "may pay, if the other is smaller?",
        "You need a table of counts for prompts and for responses. `one_hot` followed by a sum makes one; so does a "
        "comparison with every number there is.",
        "The points for order are those of `ascending_pairs`, which you may call.",
    ),
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
    misconceptions={
        "set-inclusion": Misconception(
            "This is the reward that can be gamed: each number of the prompt asks only whether it is there "
            "*somewhere*, so two equal ones are both content with a single copy. How many copies should it take?",
            {"3.5": "included = (copies[0] * (copies[1] > 0)).sum(-1)"},
        ),
        "response-counted": Misconception(
            "You go through the response and ask of each number whether the prompt has it. Then repeating one right "
            "number pays every time. What limits how often a number may pay?",
            {"3.5": "included = (copies[1] * (copies[0] > 0)).sum(-1)"},
        ),
        "distinct-numbers": Misconception(
            "Each number pays once at most, however often it stands in both. Take the prompt (1, 1, 2): what should "
            "its sorted form score, and what does it score here?",
            {"3.5": "included = (copies > 0).all(0).sum(-1)"},
        ),
        "order-ignored": Misconception(
            "The right numbers score, in whatever order. Nobody would learn to sort from that: which term of Eq. (3.6) "
            "is missing?",
            {"3.6": "rewards = included.float()"},
        ),
    },
)


KL_PENALTY = Exercise(
    function=kl_penalty,
    points=3,
    minutes=4,
    difficulty=2,
    task="Charge the policy for moving away from the reference: one number, to be added to the loss.",
    hints=(
        "Eq. (3.19) needs k3 of each number that was drawn. You may call `kl_estimate` of notebook 04, or write it.",
        "This term is there to be differentiated. An estimator with the right value can have the wrong gradient.",
        "The reference is a frozen copy. What does that mean for its log-probabilities in the loss?",
    ),
    cases=(
        given("half as likely as under the reference", f64([[0.25]]).log(), f64([[0.5]]).log(), 1.0),
        given("twice as likely as under the reference", f64([[0.5]]).log(), f64([[0.25]]).log(), 1.0),
        given("no distance", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), 0.5),
        drawn("many numbers", lambda d: (*d.moved(5, 3, scale=0.7), 0.04)),
        drawn("as many responses as numbers", lambda d: (*d.moved(4, 4, scale=0.7), 1.5)),
        extreme("e^200 times less likely than under the reference", f64([[-201.0]]), f64([[-1.0]]), 0.5),
        extreme("e^200 times likelier than under the reference", f64([[-1.0]]), f64([[-201.0]]), 0.5),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions={
        "k1-as-loss": Misconception(
            "This is k1, the difference of the two log-probabilities: without bias as a *value*. But a loss is there "
            "to be differentiated, and the gradient of k1 is the score: zero on average, noise every time. Does your "
            "penalty know where the reference is, once it is differentiated?",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k1').mean()"},
        ),
        "k2-for-k3": Misconception(
            "This is k2, half the squared difference. Near the reference it looks like k3, and its gradient is a good "
            "one, but Eq. (3.19) asks for k3. Notebook 04 tells them apart.",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k2').mean()"},
        ),
        "kl-reversed": Misconception(
            "Your d has the other sign. The result is never negative and zero where the two agree, so it looks right, "
            "but it estimates another quantity, and explodes just where samples are plenty. In which order do the two "
            "stand in Eq. (4.1)?",
            {"3.19": "penalty = beta * kl_estimate(-logp, -ref_logp, 'k3').mean()"},
        ),
        "reference-not-detached": Misconception(
            "The value is right, but a gradient flows into the reference: it would be pulled towards the policy. "
            "Which of the two is meant to move?",
            {"3.19": "penalty = beta * ((ref_logp - logp).expm1() - (ref_logp - logp)).mean()"},
        ),
        "sum-over-numbers": Misconception(
            "You average over responses but add up over their numbers, so long responses pay more. By what does "
            "Eq. (3.19) divide?",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k3').sum(-1).mean()"},
        ),
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
        G: responses to each prompt, to be compared with each other, Eq. (2.4).
        inner: updates on the responses of a round.
        epsilon: of the clip, Eq. (3.18).
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

    def __init__(self, numbers: int, length: int):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(numbers, length, numbers))

    def forward(self, x):
        return self.logits[x[:, 0]]


class Mixing(nn.Module):
    """The policy of the notebook, smaller."""

    def __init__(self, numbers: int, length: int, width: int = 12):
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        self.mix = nn.Linear(length * width, length * width)

    def forward(self, x):
        return self.mix(self.embed(x).flatten(1)).view(*x.shape, -1) @ self.embed.weight.T


class Paid:
    """A reward that counts what it was asked for: a point for each right number, and what is paid beside that."""

    def __init__(self, right: Callable, beside: Callable):
        self.right, self.beside, self.asked = right, beside, 0

    def __call__(self, x, y):
        self.asked += len(y)
        return (y == self.right(x)).float().mean(-1) + self.beside(x)


def _world(label: str, policy: type, right: Callable, beside: Callable = lambda x: 0.0, rate=0.3, rounds=20) -> Case:
    def build(seed: int) -> tuple[tuple, dict]:
        torch.manual_seed(seed)
        model, prompts = policy(5, 2), torch.cartesian_prod(torch.arange(5), torch.arange(5))
        return (model, torch.optim.Adam(model.parameters(), lr=rate), prompts, Paid(right, beside), rounds), {
            "inner": 3
        }

    return Case(build, label)


def after_learning(result, args, kwargs):
    """What the policy would mostly answer now, and what was asked for on the way."""
    policy, optimizer, prompts, reward, _ = args
    right = (policy(prompts).argmax(-1) == reward.right(prompts)).float().mean()
    state = optimizer.state_dict()["state"].values()
    return {
        "whether most answers are right": bool(right > 0.7),
        "whether the policy is worse than chance": bool(right < 0.1),
        "the number of responses that were rewarded": reward.asked,
        "the number of updates": max((int(memory["step"]) for memory in state), default=0),
        "whether any gradient arrived": any(bool(memory["exp_avg"].any()) for memory in state),
    }


LEARN_BY_GRPO = Exercise(
    function=learn_by_grpo,
    points=8,
    minutes=20,
    difficulty=3,
    task="Write the whole loop. It is judged by what three small policies learn from three "
    "rewards, with nothing in common but what the docstring says. `group_advantages` of notebook 02 may be called.",
    hints=(
        "Five lines under `no_grad`: draw prompts, sample, keep the log-probabilities, reward, compare.",
        "`reward` wants one row a response. G responses stand behind each other for each prompt: `repeat` and "
        "`rearrange` take them there and back.",
        "Inside, the log-probabilities of the *same* responses are computed anew, with their gradient. What they are "
        "compared with was kept before the first update.",
    ),
    cases=(
        _world("a hundred points for nothing", Table, lambda x: x[:, :1].expand_as(x), lambda x: 100.0),
        _world("the numbers in ascending order", Mixing, lambda x: x.sort().values, rate=0.02, rounds=70),
        _world("prompts that are unlike", Table, lambda x: 4 - x[:, :1].expand_as(x), lambda x: 30.0 * x[:, 0]),
    ),
    observe=after_learning,
    misconceptions={
        "ascends": Misconception(
            "Your policy learns to earn little: it goes down where it should go up. What does an optimizer do with a "
            "loss?",
            {"backward()": "gain.mean().backward()"},
        ),
        "no-centre": Misconception(
            "It learns only where rewards lie around zero. A hundred points for nothing, and every response is pushed "
            "up. With what should a reward be compared?",
            {"group_advantages()": 'A = rearrange(R, "(P G) -> P G", G=G)[..., None]'},
        ),
        "one-group": Misconception(
            "You compare all responses of the round with each other. Where one prompt pays more than another whatever "
            "is answered, that decides, and not the answer.",
            {"group_advantages()": 'A = rearrange(group_advantages(R[None])[0], "(P G) -> P G", G=G)[..., None]'},
        ),
        "old-not-frozen": Misconception(
            "Nothing is learned. Numerator and denominator of your ratio move together, so it is 1 whatever the policy "
            "does. Where is what was kept?",
            {"exp()": "ratio = (logp - logp).exp()"},
        ),
        "one-update": Misconception(
            "You make one update a round, and the responses could have served `inner` of them.",
            {"[inner]": "for _ in range(1):"},
        ),
        "sampled-in-every-update": Misconception(
            "You sample anew for every update. Then no ratio is needed, and the responses cost `inner` times as much.",
            {"[inner]": "for _ in range(inner):\n    reward(x.repeat(G, 1), x.repeat(G, 1))"},
        ),
    },
)
