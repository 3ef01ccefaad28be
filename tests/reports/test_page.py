"""``report.html``: one file with the figures of the PDF."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

from harness.judge.results import read_results, write_results
from reports import build

VOID = ("meta", "br", "col", "img")


class Elements(HTMLParser):
    """Names, ids and sources of a page's elements; refuses one that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.ids, self.sources = [], Counter(), Counter(), []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.handle_startendtag(name, attributes)
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        values = dict(attributes)
        self.names[name] += 1
        self.ids.update(filter(None, [values.get("id")]))
        self.sources += filter(None, map(values.get, ("src", "href", "xlink:href")))

    def handle_endtag(self, name):
        assert self.open.pop() == name


def test_a_page_has_every_claim_and_exhibit_and_every_figure_within(built):
    text = (built / "report.html").read_text(encoding="utf-8")
    results, page = read_results(built / "results.json"), Elements(text)
    for item in (*results.claims, *results.exhibits):
        assert page.ids[item.id] == 1
    assert max(page.ids.values()) == 1
    assert page.names["script"] == 0
    figures = [file for each in results.exhibits for file in each.files if file.endswith(".svg")]
    assert text.count('role="img"') == len(figures) == 4
    targets = {source for source in page.sources if not source.startswith("#")}
    assert targets == {f"tables/{each.id}.csv" for each in results.exhibits if each.rows}
    assert {source[1:] for source in page.sources if source.startswith("#")} <= page.ids.keys()
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= page.ids.keys()


def test_text_that_looks_like_markup_stays_text(out):
    results = read_results(out / "results.json")
    marked = replace(results.claims[0], statement='<b>&amp;</b></script><img src="x">')
    write_results(out / "results.json", replace(results, claims=(marked,), exhibits=()))
    build(out)
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;&lt;/script&gt;&lt;img" in html
    assert "<img" not in html
