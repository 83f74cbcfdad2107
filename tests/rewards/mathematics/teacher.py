"""Answers as a good teacher would mark them: by rule, (expected, given, right)."""

PAIRS = {
    "a number may be written in many ways": [
        ("0.5", "1/2", True), ("1/2", r"\frac12", True), ("1/2", r"\dfrac{1}{2}", True),
        ("1/2", r"\frac{2}{4}", True), ("-1/2", r"\frac{-1}{2}", True),
        ("5", "5.0", True), ("5", "+5", True), ("12", "１２", True), ("4", "4.", True), ("4", "4。", True),
        ("4", "**4**", True), ("4", "(4)", True), ("4", r"\boxed{4}", True), ("4", r"$4$", True),
        ("42", "= 42", True), ("4", r"\(4\)", True), ("1/2", "1:2", True), ("007", "7", True),
    ],
    "decimals are exact": [
        ("1/3", "0.33", False), ("2/3", "0.666666", False), ("3.14", "22/7", False), ("0.0000001", "0", False),
        ("2", "2.0000001", False), ("0.1", "1/10", True),
    ],
    "thousands": [
        ("1234", "1,234", True), ("1,234,567", "1234567", True), ("1234567", r"1{,}234{,}567", True),
        ("1234567", r"1\,234\,567", True), ("1000", "1 000", True), ("3.5", "3,5", False), ("1234", "12,34", False),
    ],
    "signs": [
        ("-3", "−3", True), ("-3", "–3", True), ("-3", "－３", True), ("-3", "负三", True),
        ("0", "-0", True), ("5", "-5", False), ("-1/2", r"-\frac{1}{2}", True), ("4", "±4", False),
        (r"\pm 2", "2, -2", True),
    ],
    "mixed numbers": [
        ("7/2", "3 1/2", True), ("3.5", r"3\frac{1}{2}", True), ("3.5", "3½", True), ("-7/2", "-3 1/2", True),
        ("3/2", r"3\frac{1}{2}", False), ("3.5", "3又1/2", True), ("9/2", "3 3/2", False),
    ],
    "powers of ten": [
        ("1500", "1.5e3", True), ("1500", r"1.5 \times 10^3", True), ("1500", "1.5×10³", True),
        ("0.0015", r"1.5 \cdot 10^{-3}", True), ("1500", r"1.5 \times 10^2", False),
    ],
    "Chinese numerals": [
        ("6", "六", True), ("17", "十七", True), ("2", "两个", True), ("六", "6", True), ("10", "十个苹果", True),
        ("34", "三四", False), ("102", "一百二", False), ("30", "三十万", False), ("3", "三分之一", False),
    ],
    "units may be left out, and not contradicted": [
        ("6", "6个", True), ("6个", "6", True), ("48", "48平方厘米", True), ("48平方厘米", "48", True),
        ("48平方厘米", r"48 \text{ cm}^2", True), ("48", "48 square centimetres", True), ("48", "48 cm", True),
        ("48", "48（平方厘米）", True), ("48", "48 (x)", False), ("48", "$48$ cm", True), ("25平方米", "25㎡", True),
        ("48 cm", "48 m", False), ("48 cm", "48 cm^2", False), ("5", "5 apples", True), ("5", "$5", True),
        ("5元", "5 yuan", True), ("12", "12 km/h", True), ("$5", "5元", False),
        ("90", r"90^\circ", True), ("90°", "90度", True),
        ("5000米", "5千米", False), ("5", r"5\,\mathrm{m}", True),
        ("5", "5 x", False), ("4", "4元五角", False), ("4", "4元5角", False),
        ("5", "5 hundredths", False), ("4", "4 thousands", False), ("4", "4 forties", False), ("4", "4 forty", False),
        ("5", "5 feet 6 inches", False), ("5", "5 xy", False), ("5", "5abc", False), ("3", "3万", False),
    ],
    "per cent is a hundredth": [
        ("25%", "0.25", True), ("25%", "1/4", True), ("1/4", r"25\%", True), ("0.125", "12.5 percent", True),
        ("25%", "25", False), ("117", "117%", False), ("0.25", "0.25%", False),
    ],
    "one answer, without a doubt": [
        ("117", "117, or else 3", False), ("4", "4 or 5", False), ("4", "4或5", False), ("4", "4 thirteen", False),
        ("117", r"\boxed{117} \boxed{3}", False), ("4", "3, 4", False), ("4", "3-5", False),
        ("5", "about 5", False), ("5", "5左右", False), ("5", "≈5", False), ("5", "not 5", False),
        ("4", "1 2 3 4", False), ("4", "", False), ("4", " ", False), ("0", "", False), ("4", "nan", False),
        ("4", r"\infty", False), ("4", "I do not know", False),
    ],
    "a calculation is no answer": [
        ("117", "17+58+42", False), ("117", r"3 \times 39", False), ("117", "120-3", False),
        ("117", "3(39)", False), ("0.5", "1÷2", False), ("2", r"\frac{1+3}{2}", False), ("3/4", "1/2+1/4", False),
        ("3/4", "3/4", True), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True), (r"2\pi", "2π", True),
        (r"1+\sqrt{2}", r"\sqrt{2}+1", True), ("x^2+2x+1", "(x+1)^2", True), (r"2^3 \cdot 3^2", "72", True),
    ],
    "an expression, where one is expected, may be written in any way": [
        (r"2\sqrt{3}", r"\sqrt{12}", True), ("2√3", r"2\sqrt{3}", True), (r"\ln 2", "ln(2)", True),
        ("117", "117!", False),
        ("9!", "362880", True), ("2^{10}", "1,024", True), (r"\sqrt{2}", "1.414214", True),
        (r"\sqrt{2}", "1.41", False),
    ],
    "the value of a name counts": [
        ("4", "x=4", True), ("x=4", "4", True), ("4", "4 = x", True), ("4", "not x = 4", False),
        ("4", r"x \neq 4", False), ("4", "x >= 4", False), ("6", "总价=6元", True), ("x=4", "y=4", False),
        ("1/2", r"P(A)=\frac{1}{2}", True),
        ("6", r"S_{\triangle ABC} = 6", True), ("117", "3=117", False), ("4", "x=4=5", False), ("x=4", "2x=8", False),
        ("4", "4 = 2+2", False), ("10", "5×3=10（元）", False), ("y=2x+1", "2x+1", True),
        ("y=2x+1", "y=1+2x", True),
    ],
    "inequalities and intervals": [
        ("x>3", r"(3,\infty)", True), (r"(3,\infty)", "x>3", True), ("(3, oo)", "3 < x", True),
        ("x>3", "x≥3", False), ("x>3", "2x>6", False), ("[1,2)", r"1 \le x < 2", True), ("(0,1)", "(0,1]", False),
    ],
    "order counts in tuples, not in sets and lists": [
        ("(1,2)", "(1, 2)", True), ("(1,2)", "(2,1)", False), ("(1,2)", "1,2", True), ("(1,2)", "2,1", False),
        ("(1/2, 3)", "(0.5, 3)", True), ("1,2", "2,1", True), (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,2\}", "1 or 2", True), (r"\{1,2\}", "(1,2)", False), (r"\{1,2\}", r"\{1,2,3\}", False),
        ("1, 2", "x=1 或 x=2", True), ("x=1, y=2", "y=2, x=1", True), ("x=1, y=2", "x=2, y=1", False),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", False),
    ],
    "expressions and words": [
        ("x+1", "1+x", True), ("x+1", "1", False), ("a+5c", "a+5", False), ("1+2i", "2i+1", True),
        (r"\infty", "∞", True), ("无解", "no solution", True), ("A", "(A)", True), ("A", "B", False),
        ("blue", "lube", False), (r"\text{Monday}", "monday", True), ("Monday", "Tuesday", False),
        ("8:00", "8:00", True), ("星期一", "星期一。", True), ("星期一", "星期二", False),
        ("Paris", "I think it is Paris", False), ("9" * 900, "9" * 900, True), ("9" * 900, "9" * 899 + "8", False),
    ],
}  # fmt: skip

# What a teacher would mark in another way than `math_reward`, whose docstring says so.
DEPARTURES = [
    ("4", "the answer is 4", True), ("7", "seven", True), ("-3", "minus 3", True), ("2.5", "2 and a half", True),
    ("5000米", "5公里", True), ("45°", r"\frac{\pi}{4}", True), ("1/3", r"0.\overline{3}", True),
    ("4", r"\sqrt{16}", True), ("1024", "2^{10}", True), ("120", "5!", True), ("3", r"\log_2 8", True),
    ("3", "6/2", False), ("1.414214", r"\sqrt{2}", True), ("1/3", "0.333333", True), ("117", "17+58+42 = 117", True),
    ("6", "area of the triangle = 6", True), ("4", "4 teeth", True), ("3", "3个三角形", True),
    (r"2\pi", r"2\pi \text{ cm}", True), ("117", "一百一十七", True), ("1/3", "三分之一", True),
    ("35000", "3.5万", True), ("5000000", "5 million", True),
    (r"(-\infty,2)\cup(3,\infty)", "x<2 or x>3", True),
]  # fmt: skip
