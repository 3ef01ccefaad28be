"""Reference pages, generated from the code: ``python -m harness.reference PAGE``."""

from harness.reference.keys import Key, keys_of
from harness.reference.pages import PAGES, cluster_page, render_page

__all__ = ["PAGES", "Key", "cluster_page", "keys_of", "render_page"]
