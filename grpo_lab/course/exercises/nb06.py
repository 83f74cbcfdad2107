"""The exercises of notebook 06."""

from grpo_lab.course.exercise import Case, Draws, Exercise, drawn, extreme, given
from grpo_lab.rewards import accuracy_reward, extract_answer, format_fault, graded_reward

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
NTH = ("first", "second", "third", "fourth")
KEPT = "<think>so</think><answer>4</answer>"


def _ordered(order: tuple[int, ...]) -> Case:
    a, b, c, d = (TAGS[n] for n in order)
    return given(f"the {', '.join(NTH[n] for n in order)} tag", f"{a}so{b}{c}4{d}")


def _nearly_kept(draws: Draws, *inserted: str) -> tuple[str]:
    """The format, with one of these somewhere between its tags."""
    pieces = ["<think>", "so", "</think>", "\n", "<answer>", "4", "</answer>"]
    pieces.insert(int(draws.integers(len(pieces) + 1, 1)), inserted[draws.integers(len(inserted), 1)])
    return ("".join(pieces),)


FORMAT_FAULT = Exercise(
    function=format_fault,
    cases=(
        given("the format kept", "<think>2+2</think><answer>4</answer>"),
        given("no tag at all", "4"),
        given("cut off before its end", "<think>2+2</think><answer>4"),
        given("two answers", "<think>so</think><answer>4</answer><answer>5</answer>"),
        given("the answer first", "<answer>4</answer><think>so</think>"),
        given("a word after the answer", "<think>so</think><answer>4</answer> Done."),
        given("a word before the thinking", "Well. <think>so</think><answer>4</answer>"),
        given("a word between the blocks", "<think>so</think>Hence<answer>4</answer>"),
        given("thinking over two lines", "<think>first\nthen</think><answer>4</answer>"),
        given("a line break between the blocks", "<think>so</think>\n<answer>4</answer>"),
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
    mistakes={
        "regex-no-dotall": {
            "fullmatch()": "return None if re.fullmatch(FORMAT_PATTERN.pattern, text) else 'text outside'"
        },
        "text-outside-unseen": {"fullmatch()": "return None"},
        "repeated-unseen": {"max()": "if False:"},
        "interleaved-unseen": {"index()": "positions = [text.index(tag) for tag in TAGS[::2]]"},
        "order-unseen": {"sorted()": "if False:"},
        "repeated-first": {"min()": "if max(counts) > 1:\n    return 'repeated tag'\nif min(counts) == 0:"},
    },
)


AS_WRITTEN = ("42.", "0", "None", "(4)", '"4"', "$4$", "1,000", "１２", "a  b", "北京", "4\n\n5", "&lt;", "...")


def _tags_and_words(draws: Draws, pieces: int) -> tuple[str]:
    """Tags and words in any order, with a closed block at the beginning."""
    words = ("<answer>", "</answer>", "4", " ", "\n", "</think>", "12")
    return ("<answer>7</answer>" + "".join(words[i] for i in draws.integers(len(words), pieces)),)


EXTRACT_ANSWER = Exercise(
    function=extract_answer,
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
        given("a tag with an attribute", '<answer type="number">4</answer>'),
        given("a tag with an attribute behind a block", '<answer>4</answer> or <answer id="2">5</answer>'),
        given("tags with blanks in them", "<answer >4</answer> or < answer>5</answer>"),
        given("an end with a blank in it", "<answer>4</answer> or <answer>5</answer >"),
        given("words that begin as the tag does", "<answer>4</answer> or <answers>5</answers>"),
        given("a tag that closes itself", "<answer>4</answer> or <answer/>5</answer>"),
        *(drawn(f"{n} tags and words in any order", lambda d, n=n: _tags_and_words(d, n)) for n in (5, 7, 9, 40)),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>" + "4\n" * 5000 + "</answer>"),
        extreme(
            "300 blocks, the last one never closed", "".join(f"<answer>{i}</answer>" for i in range(300)) + "<answer>1"
        ),
    ),
    mistakes={
        "first-block": {"strip()": "return blocks[0].strip() or None if blocks else None"},
        "greedy": {"findall()": "blocks = re.findall('<answer>(.*)</answer>', text, re.DOTALL)"},
        "regex-no-dotall": {"findall()": "blocks = re.findall(_ANSWER.pattern, text)"},
        "empty-matches": {"strip()": "return blocks[-1].strip() if blocks else None"},
        "unclosed-counts": {
            "findall()": "blocks = [block.partition('</answer>')[0] for block in text.split('<answer>')[1:]]"
        },
        "opened-twice": {"findall()": "blocks = re.findall('<answer>(.*?)</answer>', text, re.DOTALL)"},
    },
)


def said(answer, thought="so"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _many(draws: Draws) -> tuple[list[str], list]:
    """300 rows: right, wrong, right in an earlier block, without a block; some without an expected answer."""
    answers, kinds = draws.integers(20, 300).tolist(), draws.integers(5, 300).tolist()
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
MARKS = ("", ".", "'", '"', "$", "%", "!", "(", "-", "*", ",", ";", ":", "?", "`", "+", "=", "#", "°", "€", "\\")
NO_THOUGHT = [
    "<answer>4</answer>",
    "It is <answer>4</answer>",
    "<answer>4</answer> of course",
    "</think><answer>4</answer>",
]
UNFINISHED_THOUGHT = [
    "<think>so<answer>4</answer>",
    "<think>so</think>\n<answer>4</answer>",
    "<answer>4</answer><think>so",
]


ACCURACY_REWARD = Exercise(
    function=accuracy_reward,
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
        given("the word None expected", [said("None"), "None", said("")], ["None"] * 3),
        given("numbers in another form", [said("1,000"), said("-4"), said("１２")], [1000, -4, 12]),
        given("the same text around it", [said(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given("a sign before it", [said(f"{c}4") for c in MARKS], ["4"] * len(MARKS)),
        given("a sign behind it", [said(f"4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given(
            "a sign around what is expected",
            [said("4")] * 2 * len(MARKS),
            [*(f"{c}4" for c in MARKS), *(f"4{c}" for c in MARKS)],
        ),
        given("no thought before the answer", NO_THOUGHT, ["4"] * len(NO_THOUGHT)),
        given("a thought without an end, or behind the answer", UNFINISHED_THOUGHT, ["4"] * len(UNFINISHED_THOUGHT)),
        given(
            "other letters",
            [said("北京"), said("Straße"), said("e\u0301"), said("10²")],
            ["北京", "STRASSE", "é", "102"],
        ),
        given("other columns", [said("4")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long response", [said("4", thought="4 or 5\n" * 3000), said("4 " * 3000)], ["4", "4"]),
    ),
    mistakes={
        "empty-matches": {"6.2": "reward = float(extracted == normalise_text(str(expected)))"},
        "reward-contains": {"6.2": "reward = float(extracted != '' and normalise_text(str(expected)) in extracted)"},
        "not-normalised": {
            "completion_text()": "extracted = extract_answer(completion_text(completion)) or ''",
            "6.2": "reward = float(extracted != '' and extracted == str(expected))",
        },
        "none-as-zero": {"append()": "rewards.append(reward)"},
        "numbers-unequal": {"6.2": "reward = float(extracted != '' and extracted == expected)"},
        "thought-needed": {
            "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or '') "
            "if '<think>' in completion_text(completion) else ''"
        },
        "block-not-needed": {
            "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or "
            "completion_text(completion))"
        },
    },
)


GRADED_REWARD = Exercise(
    function=graded_reward,
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
        given("a sign before it", [said(f"{c}4") for c in MARKS], ["4"] * len(MARKS)),
        given("a sign behind it", [said(f"4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given(
            "a sign around what is expected",
            [said("4")] * 2 * len(MARKS),
            [*(f"{c}4" for c in MARKS), *(f"4{c}" for c in MARKS)],
        ),
        given("no thought before the answer", NO_THOUGHT, ["4"] * len(NO_THOUGHT)),
        given("a thought without an end, or behind the answer", UNFINISHED_THOUGHT, ["4"] * len(UNFINISHED_THOUGHT)),
        given("at the beginning, within and at the end", [said(a) for a in ("123", "012", "0123", "13")], ["12"] * 4),
        given(
            "other letters", [said("去北京"), said("Straße"), said("e\u0301a"), said("10²")], ["北京", "SS", "é", "102"]
        ),
        given("other columns", [said("4 5")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long list", [said(" ".join(map(str, range(5000)))), said("4", thought="5\n" * 5000)], [4711, 5]),
    ),
    mistakes={
        "empty-matches": {"6.4": "reward = 1.0 if extracted == target else 0.5 if contained else 0.01"},
        "empty-contained": {"6.4": "reward = 1.0 if exact else 0.5 if target in extracted else 0.01"},
        "reward-contains": {"6.4": "reward = 1.0 if exact else 1.0 if contained else 0.01"},
        "contains-backwards": {"6.4": "reward = 1.0 if exact else 0.5 if extracted in target else 0.01"},
        "none-graded": {"append()": "rewards.append(reward)"},
        "exact-only": {"6.4": "reward = 1.0 if exact else 0.01"},
        "zero-otherwise": {"6.4": "reward = 1.0 if exact else 0.5 if contained else 0.0"},
        "thought-needed": {
            "extract_answer()": "extracted = normalise_text(extract_answer(completion_text(completion)) or '') "
            "if '<think>' in completion_text(completion) else ''"
        },
        "whole-text-read": {"extract_answer()": "extracted = normalise_text(completion_text(completion))"},
    },
)
