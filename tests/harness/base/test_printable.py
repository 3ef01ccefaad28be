"""No text of a user's can break a page, a terminal or the one line of an error."""

import xml.dom.minidom

import pytest

from harness.base.errors import UserError
from harness.base.log import printable

CONTROLS = [chr(n) for n in (*range(32), *range(127, 160), 0xD800, 0xFFFE) if chr(n) not in "\n\t"]


def test_of_all_characters_those_that_no_page_can_have_are_shown_as_escapes():
    text = "".join(map(chr, range(0x10000)))
    shown = printable(text)
    assert not set(CONTROLS) & set(shown)
    assert printable(shown) == shown
    xml.dom.minidom.parseString(f"<a><![CDATA[{shown}]]></a>".encode())
    assert printable("a\x07b\x1b[31m") == r"a\x07b\x1b[31m"


def test_what_can_be_shown_stays_as_it_is():
    text = "ein Maß, 1\u202f000 ± 2\u00a0%: 速い\n\tand | so on 🙂"
    assert printable(text) == text
    odd = {"a": [1, None, 2.5, ("b", True)], "c": {"d": text}}
    assert printable(odd) == odd


def test_texts_in_data_are_reached_wherever_they_are():
    assert printable(["\x00", {"\x07": ("\x1b", 1)}]) == [r"\x00", {r"\x07": (r"\x1b", 1)}]


@pytest.mark.parametrize("control", [*CONTROLS, "\n"])
def test_an_error_is_one_line_whatever_a_value_has_in_it(control):
    assert str(UserError(f"loss: a{control}b; allowed: c")).isprintable()
