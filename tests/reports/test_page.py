"""``report.html`` as a reader's browser has it.

It takes longer than other files here: a report is built, and Chromium starts once.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from base64 import b64decode
from dataclasses import replace

import pytest

from harness.judge import Row, mean_ci, read_results, write_results
from reports import build, provenance
from reports.page.page import LIBRARIES, VENDOR, page
from reports.pdf import document
from tests.reports.browser import CHROMIUM, Browser
from tests.reports.conftest import make_out

MOST_BYTES = 1_500_000
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report whose curves have a value for each seed, one taken off the others."""
    out = make_out(tmp_path_factory.mktemp("page"))
    results = read_results(out / "results.json")
    curves = results.exhibits[1]
    rows = tuple(
        Row.from_interval(
            row.label, row.column, None, mean_ci([row.measured, row.measured + 0.3]), row.runs
        )
        for row in curves.rows
    )
    drawn = replace(curves, rows=rows, draw={"as": "curves", "against": "ASGD-hand"})
    exhibits = (results.exhibits[0], drawn, *results.exhibits[2:])
    write_results(out / "results.json", replace(results, exhibits=exhibits))
    build(out)
    return out


@pytest.fixture(scope="module")
def html(folder):
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def browser(folder, tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    made.open(folder / "report.html")
    yield made
    made.close()


def block(html, name):
    packed = re.search(f'<script type="text/plain" id="{name}">(.*?)</script>', html).group(1)
    return gzip.decompress(b64decode(packed))


def test_the_page_is_one_small_file_with_the_same_bytes_every_time(folder):
    first = (folder / "report.html").read_bytes()
    results = read_results(folder / "results.json")
    runs = provenance.lines(results, folder)
    assert page(results, runs, document(results, runs), folder) == first
    assert len(first) < MOST_BYTES


def test_it_carries_the_results_byte_for_byte_under_their_sha256(folder, html):
    stored = (folder / "results.json").read_bytes()
    assert block(html, "results") == stored
    assert f'data-sha256="{hashlib.sha256(stored).hexdigest()}"' in html


def test_it_carries_the_licences_of_what_draws(html):
    for name in LIBRARIES:
        assert (VENDOR / f"LICENSE.{name}").read_text() in html
    assert "sourceMappingURL" not in html


def test_every_chart_is_a_specification_in_json_without_data(html):
    charts = json.loads(block(html, "more"))["charts"]
    assert set(charts) >= {"forest", "chart-p1.fig2", "chart-p1.bars", "timeline-p1.fig1"}
    assert '"values": [{' not in json.dumps(charts)


def test_text_that_looks_like_markup_stays_text(make, tmp_path):
    out = make(tmp_path)
    results = read_results(out / "results.json")
    marked = replace(results.claims[0], statement='<b>&amp;</b></script><img src="x">')
    write_results(out / "results.json", replace(results, claims=(marked,), exhibits=()))
    build(out)
    html = (out / "report.html").read_text()
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;&lt;/script&gt;&lt;img" in html
    assert '<img src="x">' not in html


def test_a_report_with_nothing_in_it_is_still_a_page(make, tmp_path):
    out = make(tmp_path)
    results = read_results(out / "results.json")
    write_results(out / "results.json", replace(results, claims=(), exhibits=(), provenance={}))
    shutil.rmtree(out / "runs")
    build(out)
    assert "Where this comes from" in (out / "report.html").read_text()


@needs_chromium
def test_it_opens_from_a_file_without_trouble_and_asks_nothing_outside(browser, folder):
    assert browser.trouble == []
    asked = {address for address in browser.requests if not address.startswith("data:")}
    assert asked == {(folder / "report.html").resolve().as_uri()}
    assert "these are its bytes" in browser.run("document.getElementById('digest').textContent")


@needs_chromium
def test_every_chart_is_drawn_and_named(browser):
    bare = "[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('svg'))"
    assert browser.run(f"{bare}.length") == 0
    assert browser.run("document.querySelectorAll('.chart:not([aria-label])').length") == 0
    assert browser.run("document.querySelectorAll('#forest svg path').length") > 10


@needs_chromium
def test_the_legend_filters_plot_and_table(browser):
    rows = "[...document.querySelectorAll('.claims tbody tr')].filter(r => !r.hidden).length"
    before = browser.run(rows), browser.run("document.querySelectorAll('#forest text').length")
    press = "document.querySelector('.filter [data-verdict=unclear]')"
    browser.run(f"{press}.focus()")
    browser.key("Enter", 13)
    browser.wait(f"{press}.getAttribute('aria-pressed') === 'false'")
    hidden = "document.querySelectorAll('.claims tr[data-verdict=unclear]:not([hidden])').length"
    assert browser.run(hidden) == 0
    browser.wait(f"document.querySelectorAll('#forest text').length < {before[1]}")
    browser.run(f"{press}.click()")
    browser.wait(f"document.querySelectorAll('#forest text').length === {before[1]}")
    assert browser.run(rows) == before[0]


@needs_chromium
def test_the_table_sorts_by_number_up_and_down(browser):
    head = "[...document.querySelectorAll('.claims th')].find(h => /^ours/.test(h.textContent))"
    keys = (
        "[...document.querySelectorAll('.claims tbody tr')].map(r => r.children[2].dataset.key)"
        ".filter(k => k !== '').map(Number)"
    )
    for order in ("ascending", "descending"):
        browser.run(f"{head}.querySelector('button').click()")
        assert browser.run(f"{head}.getAttribute('aria-sort')") == order
        found = browser.run(keys)
        assert found == sorted(found, reverse=order == "descending")


@needs_chromium
def test_every_number_opens_the_runs_that_the_results_name(browser, folder):
    results = read_results(folder / "results.json")
    browser.run("document.querySelectorAll('details[data-table]').forEach(d => d.open = true)")
    rows = sum(len(exhibit.rows) for exhibit in results.exhibits)
    browser.wait(f"document.querySelectorAll('figure button[data-at]').length === {rows}")
    shown = browser.run(
        "[...document.querySelectorAll('button[data-at]')].map(b => { b.click();"
        "const d = document.getElementById('runs'), t = d.textContent;"
        "const open = d.open; d.close(); return [b.dataset.at, open, t]; })"
    )
    named = {
        f"row:{e.id}:{i}": row.runs for e in results.exhibits for i, row in enumerate(e.rows)
    } | {f"claim:{i}": claim.runs for i, claim in enumerate(results.claims)}
    assert {at for at, *_ in shown} == set(named)
    for at, is_open, text in shown:
        assert is_open
        assert "0123abc" in text
        assert "tox -e reproduce-paper1" in text
        assert all(run in text for run in named[at])


@needs_chromium
def test_a_dialog_of_runs_says_seed_and_difference_and_closes_with_the_keyboard(browser):
    browser.run("document.querySelector('[data-at=\"claim:0\"]').focus()")
    browser.key("Enter", 13)
    browser.wait("document.getElementById('runs').open")
    text = browser.run("document.getElementById('runs').textContent")
    assert "schedule.is Search" in text
    assert "2 runs." in text
    browser.key("Escape", 27)
    browser.wait("!document.getElementById('runs').open")


@needs_chromium
def test_a_brush_over_the_strip_moves_every_curve_of_its_group(browser):
    view = "state.views['chart-p1.fig2']"
    browser.run("document.getElementById('chart-p1.fig2').scrollIntoView()")
    box = browser.run(
        '(() => { const b = document.querySelector(\'[id="chart-p1.fig2"] .brush_brush_bg, '
        '[id="chart-p1.fig2"] .concat_0_group .background\').getBoundingClientRect();'
        "return [b.x, b.y, b.width, b.height]; })()"
    )
    ticks = f"JSON.stringify({view}.scale('concat_1_x').domain())"
    before = browser.run(ticks)
    x, y, width, height = box
    for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        browser.call(
            "Input.dispatchMouseEvent", type=kind, x=x + share * width, y=y + height / 2,
            button="left", buttons=1, clickCount=1,
        )  # fmt: skip
    browser.wait(f"{ticks} !== {json.dumps(before)}")
    low, high = json.loads(browser.run(ticks))
    assert 0.4 < low < high < 1.3
    assert browser.run(f"JSON.stringify({view}.scale('concat_2_x').domain())") == browser.run(ticks)


@needs_chromium
def test_the_timeline_goes_to_perfetto_when_it_answers(browser):
    browser.run(
        "window.sent = []; window.other = { postMessage: (m, o) => sent.push([m, o]) };"
        "window.open = () => other; document.querySelector('[data-perfetto]').click(); 0"
    )
    browser.wait("sent.length > 0")
    assert browser.run("sent[0]") == ["PING", "https://ui.perfetto.dev"]
    browser.run(
        "dispatchEvent(Object.assign(new Event('message'), {source: other, data: 'PONG'})); 0"
    )
    kept = "(m => JSON.parse(new TextDecoder().decode(m[0].perfetto.buffer)))(sent.at(-1))"
    assert browser.run(f"{kept}.traceEvents.length") > 32 * 4
    assert browser.run("sent.at(-1)[1]") == "https://ui.perfetto.dev"


@needs_chromium
@pytest.mark.parametrize("width", [360, 800, 1300])
def test_no_width_makes_the_page_scroll_sideways(browser, width):
    drawn = browser.run("document.documentElement.dataset.drawn")
    browser.resize(width)
    browser.wait(f"document.documentElement.dataset.drawn !== '{drawn}'")
    assert browser.run("document.documentElement.scrollWidth - innerWidth") <= 0
    cut = "[...document.querySelectorAll('.claims td')].filter(c => c.scrollWidth > c.clientWidth)"
    assert browser.run(f"{cut}.length") == 0
    table = "document.querySelector('.claims').closest('.wide')"
    assert browser.run(f"{table}.scrollWidth - {table}.clientWidth") <= 0
    assert browser.trouble == []


@needs_chromium
def test_on_a_telephone_verdict_and_figure_are_seen_and_titles_are_whole(browser):
    drawn = browser.run("document.documentElement.dataset.drawn")
    browser.resize(390)
    browser.wait(f"document.documentElement.dataset.drawn !== '{drawn}'")
    for cell in (".verdict", "td:nth-child(3) button", "td:nth-child(4)"):
        ends = f"document.querySelector('.claims tbody {cell}').getBoundingClientRect()"
        assert 0 < browser.run(f"{ends}.right") <= browser.run("innerWidth")
    titles = "[...document.querySelectorAll('.chart .role-title-text')].map(t => t.textContent)"
    assert browser.run(f"{titles}.length") > 3
    assert browser.run(f"{titles}.filter(t => t.includes('…'))") == []


@needs_chromium
def test_a_part_has_the_colour_of_its_own_verdict(browser):
    part = "document.querySelector('.claims tr[data-verdict=unclear] .verdict.holds')"
    claim = "document.querySelector('.claims tr[data-verdict=reproduced] .verdict.reproduced')"
    assert browser.run(f"getComputedStyle({part}).color === getComputedStyle({claim}).color")


@needs_chromium
def test_a_dark_screen_gets_a_dark_page(browser):
    drawn = browser.run("document.documentElement.dataset.drawn")
    browser.dark(True)
    browser.wait(f"document.documentElement.dataset.drawn !== '{drawn}'")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 27)"
    browser.dark(False)


@needs_chromium
def test_a_picture_can_be_taken_of_it(browser, tmp_path):
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
