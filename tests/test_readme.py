"""What the README says is true: its commands are run in CI, its files exist."""

import re
from pathlib import Path

from kvassay.harness import options

HOUSE = Path(__file__).parents[1]
README = (HOUSE / "README.md").read_text(encoding="utf-8")
CI = (HOUSE / ".ci/run").read_text(encoding="utf-8").splitlines()


def commands() -> list[str]:
    """The lines of the README that a reader is told to type."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_ci_runs_every_command_and_the_test_command_last() -> None:
    assert commands()
    assert [command for command in commands() if command not in CI] == []
    assert CI[-1] == "python3 -m tox run -e test"


def test_every_option_is_in_the_table_of_options() -> None:
    class Parser:
        def __init__(self) -> None:
            self.names: list[str] = []

        def getgroup(self, *_: str) -> "Parser":
            return self

        def addoption(self, name: str, **_: object) -> None:
            self.names.append(name)

    parser = Parser()
    options.add(parser)
    table = re.findall(r"^\| `(--.*?)` \|", README, re.MULTILINE)
    told = {name for cell in table for name in re.findall(r"--[a-z-]+", cell)}
    assert told == set(parser.names)


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (HOUSE / link).exists()] == []
