"""Hooks that mkdocs calls while it builds the documentation.

A page asks for a table of the code by a comment, `<!-- from the code: options -->`.  Each code has a page of its own,
which stands in no file: its address is in messages and reports, so the code alone says which pages there are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from gradcheck_cli.errors import DOCUMENTATION

WANTED = re.compile(r"<!-- from the code: ([\w ]+) -->")
CODES = "reference/codes"
ROOT = Path(__file__).parents[1]


def on_config(config: Any) -> Any:
    """Gives the site the address that messages link to, its pages the files of the checkout, its menu the codes."""
    config.site_url = DOCUMENTATION
    config.mdx_configs["pymdownx.snippets"]["base_path"] = [str(ROOT)]
    [own] = [part["Reference"] for part in config.nav if "Reference" in part]
    [codes] = [part["Codes"] for part in own if isinstance(part, dict)]
    codes[1:] = [{code: f"{CODES}/{code}.md"} for code in reference.PAGES]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of codes, and the schemas that pages offer."""
    made = {f"{CODES}/{code}.md": reference.code_page(code) for code in reference.PAGES}
    for path, content in (made | reference.schema_files()).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Puts tables of the code where a page asks for them."""
    return WANTED.sub(lambda found: _made(found[1], page.file.src_uri), markdown)


def _made(name: str, path: str) -> str:
    if name not in reference.TABLES:
        raise PluginError(f"{path} asks for {name!r}; the code gives {', '.join(reference.TABLES)}.")
    return reference.TABLES[name]()
