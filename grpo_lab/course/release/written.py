"""The written questions: what no test can mark. Each has a note for the teacher, who reads the answers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """name: unique; text: what the student reads; look_for: what a full answer has, for the teacher only."""

    name: str
    points: int
    text: str
    look_for: tuple[str, ...]


WRITTEN: dict[str, tuple[Question, ...]] = {
    "01": (
        Question(
            "01-loss-value", 3,
            "Your `reinforce_loss` falls from 0.3 to −2.1 during a run in which the mean reward does not change. "
            "Has the policy become better? Say what the value of this loss tells you, and what to plot instead.",
            (
                "the value is no measure of quality: only its gradient means something",
                "log-probabilities scale it, so a more certain policy or other weights move it without any gain",
                "plot the mean reward (with its spread over seeds), and entropy or length beside it",
            ),
        ),
    ),
    "02": (
        Question(
            "02-equal-group", 3,
            "In one batch, 60 of 64 prompts have groups in which all rewards are equal. What do these groups bring "
            "to the gradient, with and without a KL term? Name two ways to get more out of the same number of samples.",
            (
                "advantages are exactly zero: no gradient from the reward part",
                "a KL term does not contain the advantage, and still pulls towards the reference",
                "two of: prompts of fitting difficulty, sampling again until groups are mixed, larger groups on hard "
                "prompts, a finer reward",
            ),
        ),
    ),
    "03": (
        Question(
            "03-gamed", 3,
            "The reward of notebook 03 can be gamed. Describe a policy that earns much and sorts nothing, and change "
            "the reward so that it no longer pays. What might your change make worse?",
            (
                "a concrete degenerate answer, such as ascending numbers that are not those of the prompt",
                "a change under which that answer earns less than the right one",
                "an honest cost: a sparser signal early on, or a new way to game it",
            ),
        ),
    ),
    "04": (
        Question(
            "04-which-kl", 4,
            "Somebody reports: k3 has less variance than k1, so it is our KL term in the loss. What is right about "
            "this, what is missing, and which term would you choose if you want the gradient of the reverse KL?",
            (
                "as an estimate of the value it is right: same mean, less variance near the reference",
                "as a loss its gradient is another: k3 descends the forward KL, k1 none on average",
                "k2, k3+ or r*k3 in the loss, or k1 in the reward, descend the reverse KL",
            ),
        ),
    ),
    "05": (
        Question(
            "05-length", 4,
            "Two responses to one prompt are wrong, one with 10 tokens, one with 1,000. Compare how hard a single "
            "token of each is pushed down under `grpo`, `dr_grpo` and `dapo`. What does that do to lengths over time?",
            (
                "grpo: divided by the own length, so a token of the long one is pushed a hundred times less",
                "dr_grpo and dapo: every token alike",
                "under grpo long wrong answers are the cheaper ones, so wrong answers grow",
            ),
        ),
    ),
    "06": (
        Question(
            "06-verifier", 3,
            "Give one right answer that your verifier scores 0 and one wrong answer that it scores 1. Which of the two "
            "faults harms training more, and why?",
            (
                "both examples are real for the student's own functions",
                "a wrong answer that is paid is found and repeated by the policy; it is what training looks for",
                "a right one that is not paid costs signal, and pushes its style down",
            ),
        ),
    ),
    "07": (
        Question(
            "07-clip-ratio", 3,
            "Your run shows `clip_ratio/region_mean` = 0 at every step. Is it broken? Say under which settings this "
            "must be so, and what would have to change for it to be above zero.",
            (
                "with one update a batch the ratio is 1 where the gradient is taken, so nothing is clipped",
                "several updates a batch (num_iterations, or several mini-batches) move the ratio away from 1",
                "a sampler that differs from the scorer would show here too, and is a fault",
            ),
        ),
    ),
    "08": (
        Question(
            "08-memory", 4,
            "You have one card of 16 GB and want to train all of Qwen2-0.5B with 8 completions of 512 tokens. Draw up "
            "the memory: weights, gradients, moments, the largest activation. What do you change first if it does not "
            "fit, and what does that cost?",
            (
                "bytes a parameter times 0.494 billion, with the precision named",
                "the logits as the largest single activation, and that they need not exist all at once",
                "a change with its price: 8-bit moments, chunks, checkpointing, smaller micro-batches",
            ),
        ),
    ),
}  # fmt: skip
