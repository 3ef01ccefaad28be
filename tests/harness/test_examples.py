import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import argument_types, train
from harness.cli import EXAMPLES, Parser, format_examples, parser_of
from reproductions import command


def below(parser: Parser) -> Iterator[Parser]:
    """A parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from below(inner)


def test_every_command_shows_examples_and_there_is_no_other():
    programs = {parser.prog for parser in below(parser_of(None, every=True))}
    assert programs | {"harness.train", "reproductions"} == set(EXAMPLES)
    for program in EXAMPLES:
        assert f"  {program}" in format_examples(program) or f"-m {program}" in format_examples(
            program
        )
    assert parser_of(None).format_help().endswith(format_examples("lagbench"))
    assert format_examples("lagbench nosuch") == ""


@pytest.mark.parametrize("program", EXAMPLES)
def test_examples_are_what_the_parsers_take(program, monkeypatch):
    monkeypatch.setattr(argument_types, "folder_of_run", Path)
    monkeypatch.setattr(argument_types, "run_file", Path)
    made = {"harness.train": train.parser, "reproductions": command.parser}
    parser = made.get(program, lambda: parser_of(None, every=True))()
    outer = program.split()[1:]
    for words in EXAMPLES[program]:
        parser.parse_args([*outer, *shlex.split(words.partition(">")[0])])
