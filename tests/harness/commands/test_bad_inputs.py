import re
from collections.abc import Sequence

import pytest

from harness.cli import main
from tests.harness.commands.bad_inputs import Case, cases, prepared

CASES = cases()
CLASSES = list(dict.fromkeys(case.name.partition(":")[0] for case in CASES))


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", CLASSES)
def test_whatever_is_asked_is_answered_or_refused_in_one_line(kind, stride, tmp_path, capfd):
    wrong = []
    chosen = [case for case in CASES if case.name.startswith(f"{kind}:")][::stride]
    for place, case in enumerate(chosen):
        (folder := tmp_path / str(place)).mkdir()
        complaint = complained(case, prepared(case, folder), capfd)
        wrong += [f"{case.name}: {complaint}"] if complaint else []
    assert not wrong, "\n".join(wrong)


def complained(case: Case, arguments: Sequence[str], capfd) -> str:
    """What is wrong with the answer; empty if nothing."""
    try:
        code = main(arguments)
    except BaseException as error:
        capfd.readouterr()
        return f"{type(error).__name__}: {error}"[:300]
    out, err = capfd.readouterr()
    written = "cannot write" in err  # which is known only after the table is printed
    if code == 2 and ((out and not written) or not re.fullmatch("error: .*\n", err)):
        return f"said {out[:100]!r} and {err[:200]!r}"
    if code == 2 and len(err) > 1500:
        return f"{len(err)} characters"
    if code not in (0, 2) or (case.refused is not None and case.refused != (code == 2)):
        return f"code {code}: {err[:200]!r}"
    return ""
