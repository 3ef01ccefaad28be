"""Lines for the user: bare on the standard error, unless a program says otherwise."""

import io
import logging
import subprocess
import sys

import pytest

from harness.base.log import LOG

pytestmark = pytest.mark.usefixtures("log_handlers")


def test_a_line_is_written_as_it_is_to_what_is_the_standard_error_by_then(capsys) -> None:
    LOG.info("50% done")
    LOG.info("compiling ...", extra={"end": " "})
    LOG.warning("1.0 s")
    assert capsys.readouterr().err == "50% done\ncompiling ... 1.0 s\n"


def test_a_program_silences_or_redirects_lines(capsys) -> None:
    there = io.StringIO()
    logger = logging.getLogger("lagbench")
    logger.handlers = [logging.StreamHandler(there)]
    logger.info("on its way")
    logger.setLevel(logging.WARNING)
    logger.info("silenced")
    assert there.getvalue() == "on its way\n"
    assert capsys.readouterr().err == ""


def test_handlers_that_a_program_has_chosen_before_are_kept() -> None:
    code = """
import logging, sys
logging.getLogger("lagbench").addHandler(logging.StreamHandler(sys.stdout))
from harness.base.log import LOG
LOG.info("once")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("once\n", "")
