from grpo_lab.course.exercise import Case, Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.rewards import format_fault

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
NTH = ("first", "second", "third", "fourth")
KEPT = "<think>so</think><answer>4</answer>"


def _ordered(order: tuple[int, ...]) -> Case:
    a, b, c, d = (TAGS[n] for n in order)
    return given(f"the {', '.join(NTH[n] for n in order)} tag", f"{a}so{b}{c}4{d}")


def _nearly_kept(dice: Dice, *inserted: str) -> tuple[str]:
    """The format, with one of these somewhere between its tags."""
    pieces = ["<think>", "so", "</think>", "\n", "<answer>", "4", "</answer>"]
    pieces.insert(int(dice.integers(len(pieces) + 1, 1)), inserted[dice.integers(len(inserted), 1)])
    return ("".join(pieces),)


EXERCISE = Exercise(
    function=format_fault,
    points=4,
    minutes=20,
    difficulty=2,
    task="Say in which way a response breaks the format, or None if it keeps it. A reward of 0 tells you nothing about "
    "the reason; this function does.",
    hints=(
        "The docstring gives the order in which faults are looked for. Four tags, four counts: two of the faults need "
        "no more.",
        "Once each tag occurs exactly once, where does each begin?",
        "What is left is whether anything but white space stands around the blocks. By default the dot of a regular "
        "expression stops at the end of a line. And does `search` look at the whole text?",
    ),
    cases=(
        given("the format kept", "<think>2+2</think><answer>4</answer>"),
        given("no tag at all", "4"),
        given("cut off before its end", "<think>2+2</think><answer>4"),
        given("two answers", "<think>so</think><answer>4</answer><answer>5</answer>"),
        given("the answer first", "<answer>4</answer><think>so</think>"),
        given("a word after the answer", "<think>so</think><answer>4</answer> Done."),
        given("a word before the thinking", "Well. <think>so</think><answer>4</answer>"),
        given("a word between the blocks", "<think>so</think>Hence<answer>4</answer>"),
        given("thinking over two lines", "<think>first\nthen</think>\n<answer>4</answer>\n"),
        given("empty blocks", "<think></think><answer></answer>"),
        given("the answer within the thinking", "<think>so<answer>4</think></answer>"),
        given("one tag twice, another missing", "<think><think>so</think><answer>4"),
        given("two ends of thinking", "<think>so</think></think><answer>4</answer>"),
        given("nothing", ""),
        given("signs like those of tags", "<think>2 < 3, <b>so</b> 4 > 3</think><answer>a<b>4</answer>"),
        given("the beginning of a tag", "<think>so <thin</think><answer>4 </answe</answer>"),
        given("tags in other letters", "<Think>so</Think><ANSWER>4</ANSWER>"),
        given("white space of other kinds", "\t\u3000<think>so</think>\r\n\u00a0<answer>4</answer>\n\n"),
        *(_ordered(order) for order in ((0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (2, 3, 0, 1), (3, 2, 1, 0))),
        *(given(f"the {NTH[n]} tag missing", KEPT.replace(tag, "")) for n, tag in enumerate(TAGS)),
        *(given(f"the {NTH[n]} tag twice", KEPT.replace(tag, 2 * tag)) for n, tag in enumerate(TAGS)),
        given("the second tag in the place of the first", KEPT.replace(TAGS[0], TAGS[1])),
        drawn("a word or a blank somewhere", lambda d: _nearly_kept(d, "so", " ", "\n")),
        drawn("one tag more", lambda d: _nearly_kept(d, *TAGS)),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>4</answer>" + "\n" * 5000),
        extreme("a word after thousands of lines", KEPT + "\n" * 5000 + "so"),
    ),
    misconceptions={
        "regex-no-dotall": Misconception(
            "Your pattern stops at the end of a line: a response that thinks in several lines breaks the format, and a "
            "policy learns to think in one. What does a dot match, and which flag changes that?",
            {"fullmatch()": "return None if re.fullmatch(FORMAT_PATTERN.pattern, text) else 'text outside'"},
        ),
        "text-outside-unseen": Misconception(
            "Text before, between or after the blocks goes unnoticed. Is finding the pattern *somewhere* enough?",
            {"fullmatch()": "return None"},
        ),
        "repeated-unseen": Misconception(
            "Your pattern accepts a response with two answers: its dots take in the tags between. A policy would write "
            "every candidate it can think of. What says how often a tag occurs?",
            {
                "max()": "if max(counts) > 1 and "
                "re.fullmatch(r'\\s*<think>.*</think>\\s*<answer>.*</answer>\\s*', text, re.DOTALL):\n"
                "    return None\n"
                "if max(counts) > 1:"
            },
        ),
        "closing-tags-unseen": Misconception(
            "You count the opening tags alone. A response cut off before `</answer>` then keeps the format. There are "
            "four tags.",
            {
                "count()": "counts = [text.count(tag) for tag in TAGS[::2]]",
                "index()": "if [text.count(tag) for tag in TAGS[1::2]] != [1, 1]:\n"
                "    return None\n"
                "positions = [text.index(tag) for tag in TAGS]",
            },
        ),
        "interleaved-unseen": Misconception(
            "You compare only where the two blocks *begin*. `<think>..<answer>..</think></answer>` has all four tags "
            "once, and in the wrong order. Which positions have to rise?",
            {"index()": "positions = [text.index(tag) for tag in TAGS[::2]]"},
        ),
    },
)
