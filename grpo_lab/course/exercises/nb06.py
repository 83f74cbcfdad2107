"""The exercises of notebook 06."""

from grpo_lab.course.exercise import Case, Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.rewards import accuracy_reward, extract_answer, format_fault, graded_reward

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


FORMAT_FAULT = Exercise(
    function=format_fault,
    points=4,
    minutes=6,
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


AS_WRITTEN = ("42.", "0", "None", "(4)", '"4"', "$4$", "1,000", "１２", "a  b", "北京", "4\n\n5", "&lt;", "...")


def _tags_and_words(dice: Dice, pieces: int) -> tuple[str]:
    """Tags and words in any order, with a closed block at the beginning."""
    words = ("<answer>", "</answer>", "4", " ", "\n", "</think>", "12")
    return ("<answer>7</answer>" + "".join(words[i] for i in dice.integers(len(words), pieces)),)


EXTRACT_ANSWER = Exercise(
    function=extract_answer,
    points=3,
    minutes=4,
    difficulty=2,
    task="Take the text out of the last closed answer block. Whatever your function lets through will be found and "
    "used by a policy that is rewarded for it.",
    hints=(
        "Write down what should come out of: no block, an empty block, two blocks, a block that is never closed.",
        "`re.findall` gives all blocks. The dot needs a flag to cross lines, and a question mark so as not to run to "
        "the last closing tag.",
        "'<answer>one <answer>two</answer>': where does the block begin that is closed here?",
    ),
    cases=(
        given("one block", "<answer>4</answer>"),
        given("no block", "It is 4."),
        given("two blocks", "<answer>4</answer> Wait. <answer>5</answer>"),
        given("white space within", "<answer> 4\n</answer>"),
        given("two lines", "<answer>4\n5</answer>"),
        given("an empty block", "<answer></answer>"),
        given("only white space", "<answer> \n </answer>"),
        given("an answer, then an empty block", "<answer>4</answer><answer></answer>"),
        given("never closed", "<think>so</think><answer>4"),
        given("closed, then opened again", "<answer>4</answer> or <answer>5"),
        given("opened twice, closed once", "<answer>one <answer>two</answer>"),
        given("closed without being opened", "4</answer>"),
        given("opened once, closed twice", "<answer>4</answer> or 5</answer>"),
        given("within the thinking", "<think><answer>4</answer> or 5</think> It is 5."),
        given("another tag in the answer", "<answer>if 3 < 4: <b>4</b></answer>"),
        given("white space of other kinds", "<answer>\t\u3000 4 5\u00a0\r\n</answer>"),
        given("a block in other letters", "<answer>4</answer> or <Answer>5</Answer>"),
        given("opened three times", "<answer>1<answer> 2 <answer>\n3</answer>"),
        *(given(f"an answer as it is written, {text}", f"<answer>{text}</answer>") for text in AS_WRITTEN),
        *(drawn(f"{n} tags and words in any order", lambda d, n=n: _tags_and_words(d, n)) for n in (5, 7, 9, 40)),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>" + "4\n" * 5000 + "</answer>"),
        extreme(
            "300 blocks, the last one never closed", "".join(f"<answer>{i}</answer>" for i in range(300)) + "<answer>1"
        ),
    ),
    misconceptions={
        "first-block": Misconception(
            "You take the first block. A response that corrects itself means its last one.",
            {"strip()": "return blocks[0].strip() or None if blocks else None"},
        ),
        "greedy": Misconception(
            "Your pattern runs from the first opening tag to the last closing one, and takes the whole text between "
            "two answers for an answer. What makes a repetition stop as early as it can?",
            {"findall()": "blocks = re.findall('<answer>(.*)</answer>', text, re.DOTALL)"},
        ),
        "regex-no-dotall": Misconception(
            "An answer that stands on a line of its own is not found: the dot does not match a line break. Which flag "
            "changes that?",
            {"findall()": "blocks = re.findall(_ANSWER.pattern, text)"},
        ),
        "empty-matches": Misconception(
            "An empty block gives you an empty text. Whoever compares that with an expected answer that happens to be "
            "empty, or looks for it *in* one, finds it equal. What should say that there is no answer?",
            {"strip()": "return blocks[-1].strip() if blocks else None"},
        ),
        "unclosed-counts": Misconception(
            "You take a block that is never closed. Such a response was cut off at the length limit: '<answer>12' may "
            "have been on its way to 125.",
            {"findall()": "blocks = [block.partition('</answer>')[0] for block in text.split('<answer>')[1:]]"},
        ),
        "opened-twice": Misconception(
            "In '<answer>one <answer>two</answer>' you begin at the first opening tag, and the second becomes part of "
            "the answer. Which opening tag belongs to the closing one?",
            {"findall()": "blocks = re.findall('<answer>(.*?)</answer>', text, re.DOTALL)"},
        ),
    },
)


def said(answer, thought="so"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _many(dice: Dice) -> tuple[list[str], list]:
    """300 rows: right, wrong, right in an earlier block, without a block; some without an expected answer."""
    answers, kinds = dice.integers(20, 300).tolist(), dice.integers(5, 300).tolist()
    texts = [
        (said(a), said(a + 1), said(a) + said(a + 1), f"{a}", said(a + 1) + said(f" {a}\n"))[kind]
        for a, kind in zip(answers, kinds, strict=True)
    ]
    return texts, [(a, f" {a}", None)[row % 3] for row, a in enumerate(answers)]


TALK = [
    {"role": "user", "content": said("3")},
    {"role": "assistant", "content": said("4\n")},
    {"role": "user", "content": said("5")},
    {"role": "assistant", "content": "Yes."},
]
MARKS = ("", ".", "'", '"', "$", "%", "!", "(", "-", "*")


ACCURACY_REWARD = Exercise(
    function=accuracy_reward,
    points=3,
    minutes=4,
    difficulty=1,
    task="Reward a response whose last answer block holds the expected text, and nothing else. The policy will find "
    "every way in which this is not what you wrote.",
    hints=(
        "Three tools are there: `completion_text`, `extract_answer`, `normalise_text`. In which order?",
        "Both sides have to be in the same form before they are compared, and an expected answer may be an int.",
        "Two questions at the end: what if nothing was answered, and what if no answer was expected (None)?",
    ),
    cases=(
        given("right", [said("4")], ["4"]),
        given("wrong", [said("5")], ["4"]),
        given("right in the thinking alone", [said("5", thought="4")], ["4"]),
        given("the right answer among others", [said("3 4 5")], ["4"]),
        given("no answer block", ["4"], ["4"]),
        given("nothing answered, nothing expected", [said("")], [""]),
        given("written differently", [said("１，０００"), said("a  b")], ["1000", "a b"]),
        given("an expected number", [said("4")], [4]),
        given("no answer is known", [said("4"), said("4")], [None, "4"]),
        given("expected in another form", [said("1000"), said("a b"), said("12")], ["1,000", "a  b", "１２"]),
        given("a conversation", [TALK], ["4"]),
        given("the same number or word, but another text", [said("4.0"), said("paris")], ["4", "Paris"]),
        given("right in a block before the last", [said("4") + said("5"), said("4") + said("")], ["4", "4"]),
        given("the expected number is 0", [said("0"), said("1"), said("")], [0, 0, 0]),
        given("white space expected", [said(""), said(" "), said("4")], [" ", " ", " "]),
        given("numbers in another form", [said("1,000"), said("-4"), said("１２")], [1000, -4, 12]),
        given("the same text around it", [said(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given(
            "other letters",
            [said("北京"), said("Straße"), said("e\u0301"), said("10²")],
            ["北京", "STRASSE", "é", "102"],
        ),
        given("other columns", [said("4")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long response", [said("4", thought="4 or 5\n" * 3000), said("4 " * 3000)], ["4", "4"]),
    ),
    misconceptions={
        "empty-matches": Misconception(
            "An empty answer counts as right where an empty text is expected. One broken row in the data, and silence "
            "pays. What besides equality has to hold?",
            {"6.2": "reward = float(given == normalise_text(str(expected)))"},
        ),
        "reward-contains": Misconception(
            "An answer that *contains* the expected text is right for you. So '1 2 3 4 5 6 7 8 9' is right for any "
            "digit, and the policy will list them all. Equal is more than contained.",
            {"6.2": "reward = float(given != '' and normalise_text(str(expected)) in given)"},
        ),
        "not-normalised": Misconception(
            "You compare the texts as they are: '1,000' is wrong where '1000' is expected, and so are full-width "
            "digits and double spaces. A right answer punished teaches the opposite.",
            {
                "completion_text()": "given = extract_answer(completion_text(completion)) or ''",
                "6.2": "reward = float(given != '' and given == str(expected))",
            },
        ),
        "none-as-zero": Misconception(
            "Where no answer is known you give 0. That says *wrong*, and pulls the group down. None says that this "
            "reward does not apply.",
            {"append()": "rewards.append(reward)"},
        ),
        "numbers-unequal": Misconception(
            "You compare the expected value as it comes: the int 4 is never equal to the text '4', and a group that "
            "answers right earns nothing. Both sides need the same form.",
            {"6.2": "reward = float(given != '' and given == expected)"},
        ),
        "block-not-needed": Misconception(
            "Without an answer block you take the whole text. Then the format is never learned, and a response cut off "
            "in its thinking can still be right by chance.",
            {
                "completion_text()": "given = normalise_text(extract_answer(completion_text(completion)) or "
                "completion_text(completion))"
            },
        ),
    },
)


GRADED_REWARD = Exercise(
    function=graded_reward,
    points=3,
    minutes=3,
    difficulty=1,
    task="Full marks for the expected answer, half for an answer that contains it, almost nothing otherwise. Many "
    "public trainers use this reward. Write it, then think of the policy that earns most from it.",
    hints=(
        "Three cases. Which of them do you have to ask about first?",
        "An empty text is contained in every text. Where could one turn up, on either side?",
        "None in the column `answer`: the reward does not apply there.",
    ),
    cases=(
        given("right", [said("4")], ["4"]),
        given("wrong", [said("5")], ["4"]),
        given("a list that holds the answer", [said("3 4 5")], ["4"]),
        given("the beginning of the answer", [said("1")], ["12"]),
        given("within another number", [said("312")], ["12"]),
        given("no answer block", ["4"], ["4"]),
        given("an empty answer", [said("")], ["4"]),
        given("right in the thinking alone", [said("5", thought="4")], ["4"]),
        given("nothing answered, nothing expected", [said("")], [""]),
        given("nothing expected", [said("4")], [""]),
        given("no answer is known", [said("4"), said("4")], [None, 4]),
        given("given in another form", [said("１，０００"), said("a  b c")], ["1000", "a b"]),
        given("expected in another form", [said("1000"), said("a b c")], ["1,000", "a  b"]),
        given("a conversation", [TALK], ["4"]),
        given("the same word in other letters", [said("PARIS"), said("PARIS or Rome")], ["Paris", "Paris"]),
        given("right in a block before the last", [said("4") + said("5"), said("4") + said("")], ["4", "4"]),
        given("the expected number is 0", [said("0"), said("10"), said("1"), said("")], [0, 0, 0, 0]),
        given("white space expected", [said(""), said("a b"), said("4")], [" ", " ", " "]),
        given("the same text around it", [said(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given("at the beginning, within and at the end", [said(a) for a in ("123", "012", "0123", "13")], ["12"] * 4),
        given(
            "other letters", [said("去北京"), said("Straße"), said("e\u0301a"), said("10²")], ["北京", "SS", "é", "102"]
        ),
        given("other columns", [said("4 5")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long list", [said(" ".join(map(str, range(5000)))), said("4", thought="5\n" * 5000)], [4711, 5]),
    ),
    misconceptions={
        "empty-matches": Misconception(
            "An empty answer gets full marks where an empty text is expected. One broken row in the data, and silence "
            "pays best.",
            {"6.4": "reward = 1.0 if given == wanted else 0.5 if contained else 0.01"},
        ),
        "empty-contained": Misconception(
            "Where the expected text is empty, everything gets half marks: the empty text is contained in every text. "
            "What has to hold besides `in`?",
            {"6.4": "reward = 1.0 if exact else 0.5 if wanted in given else 0.01"},
        ),
        "reward-contains": Misconception(
            "An answer that contains the expected text gets full marks. Even this generous reward pays half for that: "
            "otherwise a list of all numbers is as good as solving the problem.",
            {"6.4": "reward = 1.0 if exact else 1.0 if contained else 0.01"},
        ),
        "contains-backwards": Misconception(
            "You ask whether the answer is contained in the expected text. Then '1' earns half marks for 12, and so "
            "does an empty answer. Which of the two is to contain the other?",
            {"6.4": "reward = 1.0 if exact else 0.5 if given in wanted else 0.01"},
        ),
        "none-graded": Misconception(
            "Where no answer is known you give 0.01. That says *wrong*; None says that this reward does not apply.",
            {"append()": "rewards.append(reward)"},
        ),
    },
)
