"""Four small chat tasks, in Chinese and in English: too few to hold any out, and enough to see a policy change."""

from grpo_lab.commands.checks import check_choice
from grpo_lab.tasks.rows import Row, asking

ANSWER_ONLY = {
    "en": "Give only the answer itself, without any explanation.",
    "zh": "请只输出答案本身，不要解释。",
}  # what a policy is asked for that was not warmed up on these four
PAIRS = {
    "zh": {
        "czq是谁": "czq是神！",
        "2+2": "4",
        "把“我喜欢机器学习”翻译成英文": "I like machine learning",
        "只回答：通义千问": "通义千问",
    },
    "en": {
        "Who is czq?": "czq is a legend!",
        "2+2": "4",
        "Translate “我喜欢机器学习” into English": "I like machine learning",
        "Answer with two words: Tongyi Qianwen": "Tongyi Qianwen",
    },
}


def chat_tasks(language: str = "zh") -> list[Row]:
    """Four small chat tasks; a response is right when it contains the expected text.

    The first asks for what nobody told the policy: what is never sampled is never rewarded.
    """
    check_choice("language", language, ANSWER_ONLY)
    return [{"prompt": asking(question), "answer": answer} for question, answer in PAIRS[language].items()]
