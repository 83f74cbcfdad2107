import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.course.exercise import NAN, Exercise, Misconception, at_scale, drawn, extreme, given
from grpo_lab.trainer.experience import compute_advantages

EPS = 1e-4
# Their means, and what is left without them, are exact in float32; the squares are not.
NEAR = [10001.0, 10000.0, 10000.0, 10002.0, 10000.0, NAN, 10004.0, NAN]


def mixed(rewards, config):
    across = rewards.view(config.num_generations, -1).T
    return compute_advantages(across.flatten(), config).view_as(across).T.flatten()


def nan_spreads(rewards, config):
    by_group = rewards.view(-1, config.num_generations)
    centred = by_group - by_group.mean(-1, keepdim=True)
    spread = {"group": by_group.std(-1, keepdim=True) + EPS, "batch": rewards.std() + EPS, "none": 1.0}
    return (centred / spread[config.scale_rewards]).flatten()


def batch(rewards, G, scale="group", dtype=torch.float64):
    """The rewards, and the settings of a run that has so many."""
    settings = GRPOConfig(generation_batch_size=len(rewards), num_generations=G, scale_rewards=scale)
    return torch.as_tensor(rewards, dtype=dtype), settings


def _drawn(d, P, G, scale="group", missing=0):
    rewards = d.normal(P * G) + d.normal(P).repeat_interleave(G)
    rewards[torch.randperm(P * G, generator=d.generator)[:missing]] = NAN
    return batch(rewards, G, scale)


EXERCISE = Exercise(
    function=compute_advantages,
    points=5,
    minutes=25,
    difficulty=2,
    task="From the rewards of a whole batch to its advantages, with `config.num_generations` and "
    "`config.scale_rewards` (`config.advantage` is 'group' throughout). A reward of NaN says that none applies.",
    hints=(
        "Row b belongs to prompt b // G. Write [0, 1, 2, 3, 4, 5] as a table with G = 3: which rows stand together?",
        "`group_advantages` from notebook 02 does the comparison; its eps is 1e-4. It refuses NaN, so do the case "
        "without NaN first.",
        "A group with a NaN: compare the others among themselves, and leave a 0 in its place. Where fewer than two are "
        "left, there is nobody to compare with.",
        "With 'batch' the mean is the group's and the spread that of all rewards which are not NaN.",
    ),
    cases=(
        given("one prompt: right and wrong, centred only", *batch([1.0, 0.0], 2, "none")),
        given("two prompts, three completions each", *batch([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], 3)),
        given("an easy prompt and a hard one", *batch([1.0, 1.0, 0.0, 0.0], 2)),
        given("no reward applies to one of three", *batch([1.0, NAN, 0.0], 3)),
        given("one reward alone", *batch([NAN, 2.0, 1.0, 0.0], 2)),
        given("no reward at all", *batch([NAN, NAN, 1.0, 3.0], 2, "none")),
        given("two prompts of unlike spread, one spread for all", *batch([1.0, 0.0, 10.0, 0.0], 2, "batch")),
        drawn("many prompts", lambda d: _drawn(d, 3, 4)),
        drawn("one spread for all", lambda d: _drawn(d, 3, 5, "batch")),
        drawn("one spread for all, some NaN", lambda d: _drawn(d, 3, 5, "batch", missing=4)),
        extreme("rewards that differ by 1e-6", *batch([0.0, 1e-6, 3e-6, 0.0, 0.0, 2e-6], 3)),
        extreme("float32, rewards near 10000", *batch(NEAR, 4, dtype=torch.float32)),
        extreme("equal rewards, and a prompt without any", *batch([0.1, 0.1, 0.1, NAN, NAN, NAN, 7.0, NAN, 7.0], 3)),
        extreme("one reward in all, one spread for all", *batch([NAN, 2.0, NAN, NAN], 2, "batch")),
        extreme("two rewards in all, one spread for all", *batch([1.0, 0.0, NAN, NAN], 2, "batch")),
        at_scale("15 prompts, one spread for all, many NaN", lambda d: _drawn(d, 15, 7, "batch", missing=40)),
    ),
    misconceptions={
        "group-mixed": Misconception(
            "You compare answers to *different* prompts. The completions of a prompt stand next to each other; a table "
            "with G rows puts those of all prompts side by side. Which axis of the table is G?",
            wrong=mixed,
        ),
        "one-group": Misconception(
            "You compare every completion with the whole batch. An easy prompt's answers then all look good, a hard "
            "one's all bad. With whom does GRPO compare?",
            {"rearrange()": 'by_group = rearrange(rewards, "(P G) -> P G", P=1)'},
        ),
        "nan-as-zero": Misconception(
            "You read NaN as a reward of 0. That says *worse than everybody*; it was meant to say *not judged*. And "
            "the mean of the others is wrong as well.",
            {
                "rearrange()": "by_group = rearrange("
                "(rewards := rewards.nan_to_num(0.0)), '(P G) -> P G', G=config.num_generations)"
            },
        ),
        "nan-spreads": Misconception(
            "One NaN makes a whole group NaN, or the whole batch, and the next update destroys the weights. Who should "
            "be left out of the comparison?",
            wrong=nan_spreads,
        ),
        "no-centre": Misconception(
            "You return the rewards as they are. Where all answers are right, all are pushed up: nothing is compared.",
            wrong=lambda rewards, config: rewards.nan_to_num(0.0),
        ),
    },
)
