from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.commands import report
from harness.judge import read_results, write_results
from reports.site import FROM, site


@pytest.fixture
def published(make, tmp_path):
    folder = tmp_path / "published" / "paper1" / "laptop"
    folder.mkdir(parents=True)
    make(folder)
    path = folder / "results.json"
    results = read_results(path)
    curves = replace(results.exhibits[4], id="p1.tolerance")
    write_results(path, replace(results, exhibits=(curves, results.exhibits[0])))
    return tmp_path / "published"


def test_a_front_page_counts_verdicts_and_every_link_leads_somewhere(published, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in published.rglob("*") if path.is_file()}
    front = site(published, tmp_path / "site")
    html = front.read_text()
    cells = re.search(r"<tbody><tr>(.*?)</tr>", html).group(1)
    assert re.findall(r"<td>(.*?)</td>", cells)[:10] == [
        "paper1", "laptop", "fsdd", "2", "1", "1", "2", "0", "0", "1",
    ]  # fmt: skip
    assert html.index("Holds here: ") < html.index("<table>"), "what was found before the files"
    links = re.findall(r'(?:href|src)="([^#][^"]*)"', html)
    assert len(links) > 5
    assert all((front.parent / link).is_file() for link in links)
    assert not (front.parent / "paper1/laptop/runs").exists()
    assert {p: p.stat().st_mtime_ns for p in published.rglob("*") if p.is_file()} == before


def test_curves_of_what_is_tolerated_stand_on_the_front_page(published, tmp_path):
    html = site(published, tmp_path / "site").read_text()
    assert 'src="paper1/laptop/figures/p1.tolerance.svg"' in html


def test_a_headline_figure_stands_on_the_front_page(published, tmp_path):
    path = published / "paper1" / "laptop" / "results.json"
    results = read_results(path)
    one = replace(results.exhibits[0], id="p1.best")
    headline = replace(one, draw={**one.draw, "headline": True})
    write_results(path, replace(results, exhibits=(headline,)))
    html = site(published, tmp_path / "site").read_text()
    assert 'src="paper1/laptop/figures/p1.best.svg"' in html


def test_the_command_names_the_front_page(published, tmp_path, capsys):
    asked = Namespace(folder=published, site=tmp_path / "site")
    assert report.run(asked) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "site" / "index.html")


def test_a_folder_without_reports_and_no_folder_are_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="holds no PAPER/SCALE/results"):
        site(tmp_path, tmp_path / "site")
    with pytest.raises(UserError, match="needs the --out folder"):
        report.run(Namespace(folder=None, site=None))


def test_published_results_are_found_wherever_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (FROM / "paper1" / "laptop" / "results.json").exists()
