import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, given
from grpo_lab.logprobs import completion_mask

EXERCISE = Exercise(
    function=completion_mask,
    points=3,
    minutes=15,
    difficulty=2,
    task="Mark the positions that belong to the completion. Get this wrong and the policy is never rewarded for "
    "stopping, or is trained on padding.",
    hints=(
        "Was it the policy's choice to end the response? Then that token is one of its actions. What follows is not.",
        "The padding token may be the end token itself. So which token stands at a position cannot decide. "
        "What happened before that position can.",
        "Count, for each position, the end tokens that stand strictly before it. `cumsum` counts the position itself "
        "as well. `torch.isin` takes one end token as well as several.",
    ),
    cases=(
        given("an end in the middle", torch.tensor([[5, 2, 7]]), 2),
        given("padded with the end token", torch.tensor([[5, 2, 2, 2]]), 2),
        given("cut off before its end", torch.tensor([[5, 6, 7]]), 2),
        given("a second end, further on", torch.tensor([[5, 2, 6, 2, 0]]), 2),
        given("rows of different lengths", torch.tensor([[2, 0, 0], [5, 6, 2], [5, 2, 0]]), 2),
        given("two kinds of end", torch.tensor([[5, 3, 0, 2], [5, 6, 2, 3]]), [2, 3]),
        drawn("as many rows as positions, two ends", lambda d: (d.integers(6, 5, 5), [0, 4])),
        at_scale("300 positions, three ends", lambda d: (d.integers(100, 7, 300), [99, 0, 41])),
    ),
    misconceptions={
        "eos-trimmed": Misconception(
            "You cut the end token off. The policy *chose* to stop there, and a choice that does not count is never "
            "rewarded: trained like this, responses grow until they are one token repeated. "
            "On which side of the border does the first end token lie?",
            {"1.9": "ends_before = is_end.cumsum(-1)"},
        ),
        "eos-by-id": Misconception(
            "You decide by *which* token stands at a position. That drops the end token, and lets in whatever follows "
            "it as long as it is another token. What makes a position padding: what stands there, or what came before?",
            {"1.10": "mask = is_end == 0"},
        ),
        "up-to-the-last-end": Misconception(
            "Your mask reaches to the last end token of the row. When rows are padded with the end token, that is all "
            "of the padding. Which of several end tokens ended the response?",
            {"1.10": "mask = ends_before < is_end.sum(-1, keepdim=True).clamp(min=1)"},
        ),
        "cut-off-forgotten": Misconception(
            "A row without an end token keeps only its first position. `argmax` of a row of zeros is 0: it says "
            "'found at the very beginning' when nothing was found. What should hold for a response that was cut off?",
            {"1.10": "mask = torch.arange(is_end.shape[1]) <= is_end.argmax(-1, keepdim=True)"},
        ),
        "one-end-only": Misconception(
            "You look for the first of the end tokens in the list and overlook the others. Qwen2-Instruct has two: "
            "which tokens may end a response?",
            {"tensor()": "ends = torch.tensor(eos_token_id, device=completion_ids.device).reshape(-1)[:1]"},
            equation="1.9",
        ),
    },
)
