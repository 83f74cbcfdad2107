from grpo_lab.course.exercise import Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.memory.parts import cache_bytes
from grpo_lab.models.shapes import ModelShape


def sized(
    layers: int, width: int, heads: int, key_heads: int, head_width: int, inner: int, vocabulary: int
) -> ModelShape:
    queries, keys = heads * head_width, key_heads * head_width
    linear = layers * (2 * width * (queries + keys) + 3 * width * inner)
    sizes = (vocabulary * width, linear, (2 * layers + 1) * width)
    return ModelShape(
        sizes=sizes, linear=linear, layers=layers, width=width, queries=queries, keys=keys, inner=inner, heads=heads,
        vocabulary=vocabulary, tied=True,
    )  # fmt: skip


def _another(dice: Dice) -> tuple:
    layers, groups, key_heads, tokens = (2 + int(x) for x in dice.integers(9, 4))
    return sized(layers, 40, groups * key_heads, key_heads, 16, 96, 1000), 100 * tokens, 4


TINY = sized(layers=2, width=12, heads=4, key_heads=2, head_width=4, inner=24, vocabulary=50)
OWN_KEYS = sized(layers=3, width=100, heads=5, key_heads=5, head_width=32, inner=200, vocabulary=300)
QWEN2_05B = sized(layers=24, width=896, heads=14, key_heads=2, head_width=64, inner=4864, vocabulary=151_936)

EXERCISE = Exercise(
    function=cache_bytes,
    points=2,
    minutes=10,
    difficulty=1,
    task="How many bytes do the keys and values of so many tokens take? Together with the weights they decide how many "
    "completions you can sample at once.",
    hints=(
        "What does attention need of an earlier token, in every layer? There are two such things.",
        "Qwen2's query heads share their keys: of 14 heads only 2 have keys of their own. Which field of `ModelShape` "
        "says how wide the keys are, all key heads together?",
    ),
    cases=(
        given("one token of a tiny model", TINY, 1, 2),
        given("Qwen2-0.5B, one token in bf16", QWEN2_05B, 1, 2),
        given("every head with a key of its own, one byte a number", OWN_KEYS, 1_000_000, 1),
        drawn("another model", _another),
        extreme("more tokens than float32 can count", QWEN2_05B, 2**24 + 1, 2),
        extreme("more bytes than a float can count", sized(3, 15, 5, 1, 7, 11, 13), 10**15 + 1, 1),
    ),
    tolerance=0.0,
    misconceptions={
        "keys-alone": Misconception(
            "This is half of it. Attention compares with the keys, and then adds up ... what?",
            {"8.14": "return shape.layers * shape.keys * e * tokens"},
        ),
        "one-layer": Misconception(
            "This is one layer's share. Every layer has keys and values of its own.",
            {"8.14": "return 2 * shape.keys * e * tokens"},
        ),
        "all-query-heads": Misconception(
            "You count a key for each *query* head. In Qwen2 seven query heads share one, which is why a token takes "
            "12 KiB and not 84.",
            {"8.14": "return 2 * shape.layers * shape.queries * e * tokens"},
        ),
        "hidden-width": Misconception(
            "You count the hidden width. That was right as long as every head had keys of its own, of the width that "
            "falls to it.",
            {"8.14": "return 2 * shape.layers * shape.width * e * tokens"},
        ),
    },
)
