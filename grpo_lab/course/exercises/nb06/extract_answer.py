from grpo_lab.course.exercise import Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.rewards import extract_answer

AS_WRITTEN = ("42.", "0", "None", "(4)", '"4"', "$4$", "1,000", "１２", "a  b", "北京", "4\n\n5", "&lt;", "...")


def _tags_and_words(dice: Dice, pieces: int) -> tuple[str]:
    """Tags and words in any order, with a closed block at the beginning."""
    words = ("<answer>", "</answer>", "4", " ", "\n", "</think>", "12")
    return ("<answer>7</answer>" + "".join(words[i] for i in dice.integers(len(words), pieces)),)


EXERCISE = Exercise(
    function=extract_answer,
    points=3,
    minutes=15,
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
