"""Reference pages, from the code that they describe: ``python -m harness.reference PAGE``."""

from harness.reference.keys import Key, keys_of
from harness.reference.pages import PAGES, as_it_should_be, cluster_page

__all__ = ["PAGES", "Key", "as_it_should_be", "cluster_page", "keys_of"]
