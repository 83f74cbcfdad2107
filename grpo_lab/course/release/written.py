"""The written question of each assignment, by its number: for the reader and the teacher. No test can mark the answer.

What a full answer has is for the teacher alone, and so not in the package: notebooks/assignments/rubric.json.
"""

WRITTEN = {
    "01": (
        "Your `reinforce_loss` falls from 0.3 to −2.1 during a run in which the mean reward does not change. "
        "Has the policy become better? Say what the value of this loss tells you, and what to plot instead."
    ),
    "02": (
        "In one batch, 60 of 64 prompts have groups in which all rewards are equal. What do these groups bring "
        "to the gradient, with and without a KL term? Name two ways to get more out of the same number of samples."
    ),
    "03": (
        "The reward of notebook 03 can be gamed. Describe a policy that earns much and sorts nothing, and change "
        "the reward so that it no longer pays. What might your change make worse?"
    ),
    "04": (
        "Somebody reports: k3 has less variance than k1, so it is our KL term in the loss. What is right about "
        "this, what is missing, and which term would you choose if you want the gradient of the reverse KL?"
    ),
    "05": (
        "Two responses to one prompt are wrong, one with 10 tokens, one with 1,000. Compare how hard a single "
        "token of each is pushed down under `grpo`, `dr_grpo` and `dapo`. What does that do to lengths over time?"
    ),
    "06": (
        "Give one right answer that your verifier scores 0 and one wrong answer that it scores 1. Which of the two "
        "faults harms training more, and why?"
    ),
    "07": (
        "Your run shows `clip_ratio/region_mean` = 0 at every step. Is it broken? Say under which settings this "
        "must be so, and what would have to change for it to be above zero."
    ),
    "08": (
        "You have one card of 16 GB and want to train all of Qwen2-0.5B with 8 completions of 512 tokens. Draw up "
        "the memory: weights, gradients, moments, the largest activation. What do you change first if it does not "
        "fit, and what does that cost?"
    ),
    "09": (
        "A run's reward has been flat for 100 updates, and its loss, gradient and KL look as always. You have an "
        "hour. Which three measurements do you take first, in which order, and which faults does each rule out?"
    ),
    "10": (
        "Your sampler runs ahead, and answers are six updates old when they are learnt from. The reward rises, and "
        "falls after a day. Name two measurements that would show whether the age is to blame, and two changes, "
        "with what each costs."
    ),
}
