from torch import tensor

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.toys.sorting import response_logprobs


def _input(d, S, P, G, T, V):
    return d.normal(S, P, T, V).log_softmax(-1), d.integers(V, S, P, G, T)


EXERCISE = Exercise(
    function=response_logprobs,
    points=3,
    minutes=15,
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
