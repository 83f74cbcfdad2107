"""`python -m grpo_lab.formulas`: every equation of the package, with the line that computes it."""

import sys

from grpo_lab.commands import Parser, command
from grpo_lab.formulas.catalogue import formula_map


@command("grpo_lab.formulas")
def main(arguments: list[str] | None = None) -> None:
    Parser(prog="python -m grpo_lab.formulas", description=__doc__).parse_args(arguments)
    found = formula_map()
    for tag, equation in found.items():
        print(f"({tag})".ljust(8) + f"{equation.function}, line {equation.lineno}: {equation.code.splitlines()[0]}")
    functions = {equation.function for equation in found.values()}
    print(f"{len(found)} equations mapped one to one to lines of code, in {len(functions)} functions")


if __name__ == "__main__":
    sys.exit(main())
