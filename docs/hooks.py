"""What the site has beyond `docs/`: pages of the root, and the files that pages link to.

On GitHub a link such as `../reproductions/clusters/k20m-server.toml` leads to the file. The site
has a copy of it under `files/`, and of a folder a page that lists what it holds, so every link
leads somewhere without a network.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "README.md")
"""Pages of the root that the site has too; the README is its first page in other words."""
FILES = "files"
KEYS = """
    options: { members: false, show_root_heading: false, show_root_toc_entry: false }"""
"""How a class of `clusters.md` is shown: its keys alone, below our heading."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and every file that a page links to."""
    for name in PAGES[:-1]:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in [path for path in files if path.src_uri.endswith(".md")]:
        for found in LINK.findall(page.content_string):
            target = _target(page.src_uri, found)
            if target is not None:
                _add(files, config, target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of `docs/` lead to the site's copy; `clusters.md` shows classes as keys."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        # A copied page keeps its links to other copies; pages of the site lie elsewhere for it.
        target = _page_of(here, found[1]) if here.startswith(FILES) else _target(here, found[1])
        return found[1] if target is None else relpath(_in_site(target), str(Path(here).parent))

    if here == "clusters.md":
        markdown = re.sub(r"^::: .*", rf"\g<0>{KEYS}", markdown, flags=re.MULTILINE)
    return LINK.sub(moved, markdown)


def _target(page: str, link: str) -> Path | None:
    """What a page links to, relative to the root, if that is no page or picture of `docs/`."""
    folder = "." if page in PAGES else f"docs/{Path(page).parent}"
    target = Path(normpath(f"{folder}/{link}"))
    inside = target.is_relative_to("docs") and (ROOT / target).is_file() and page not in PAGES
    return None if inside or not (ROOT / target).exists() else target


def _page_of(copy: str, link: str) -> Path | None:
    """The page of the site that a copied page links to, relative to the root, if it is one."""
    target = Path(normpath(Path(copy).relative_to(FILES).parent / link))
    is_page = str(target) in PAGES or target.is_relative_to("docs")
    return target if is_page and (ROOT / target).is_file() else None


def _in_site(target: Path) -> str:
    """Where the site has a file or folder of the project."""
    if str(target) in PAGES:
        return "index.md" if target.name == "README.md" else str(target)
    if target.is_relative_to("docs") and (ROOT / target).is_file():
        return str(target.relative_to("docs"))
    return f"{FILES}/{target}" + ("/index.md" if (ROOT / target).is_dir() else "")


def _add(files: Files, config: MkDocsConfig, target: Path) -> None:
    """A file, or a page of a folder's files and these."""
    uri, path = _in_site(target), ROOT / target
    if uri in files.src_uris:
        return
    if path.is_file():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
        return
    names = sorted(each.name for each in path.iterdir() if each.is_file())
    links = [
        f"- [{name}]({relpath(_in_site(target / name), str(Path(uri).parent))})" for name in names
    ]
    listed = "\n".join([f"# {target}", "", *links])
    files.append(File.generated(config, uri, content=listed))
    for name in names:
        _add(files, config, target / name)
