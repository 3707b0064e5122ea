"""`make site`: executes the notebooks, writes the pages of runs and of the API, and lets MkDocs make a static site.

    python docs/site/build.py [--notebooks 00,01]      # all of them if nothing is said
                              [--repository OWNER/NAME] # on GitHub: each notebook's page leads to where it runs

The result is build/site/html/index.html, which opens without a server; only the search needs one
(python -m http.server -d build/site/html).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import reference
import yaml
from mkdocstrings import Inventory
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tours import ROOT, Tour, tours

from ep_lib.workshop.course.saving import before_saving

HERE = Path(__file__).resolve().parent
MADE = ROOT / "build" / "site"
PAGES = MADE / "pages"
CELL_TIMEOUT_S = 900
FRAME_HEIGHT = 720


def chosen(words: str | None) -> list[Path]:
    """The notebooks whose names begin so. Exits with a sentence if there is none."""
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    if words is None:
        return notebooks
    begins = tuple(filter(None, words.split(",")))
    found = [path for path in notebooks if begins and path.stem.startswith(begins)]
    if not found:
        sys.exit(f"--notebooks is {words!r}; name the beginnings of some of {', '.join(p.stem for p in notebooks)}")
    return found


def run_it(notebook: str, repository: str) -> str:
    """Where the notebook of this file name runs: links, in Markdown."""
    how = "[how to run it](../docs/learners.md#without-installing-anything)"
    if not repository:
        return f"*This page was run for you: {how}.*"
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{notebook}"
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD?labpath=notebooks/{notebook}"
    codespaces = f"https://codespaces.new/{repository}"
    places = f"[Codespaces]({codespaces}), [Binder]({binder}), [Colab]({colab})"
    return f"*This page was run for you. Run it: {places}; {how}.*"


def execute(source: Path, repository: str) -> bool:
    """Puts the executed notebook beside the others; False if a cell failed, whose error is then part of the page."""
    notebook = nbformat.read(source, as_version=4)
    begin = time.perf_counter()
    resources = {"metadata": {"path": str(source.parent)}}
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources, coalesce_streams=True
    )
    try:
        client.execute()
        failed = False
    except CellExecutionError as error:
        print(f"{source.name}: {error}", file=sys.stderr)
        failed = True
    before_saving(str(source), {"type": "notebook", "content": notebook})  # pages have no kernel that buttons could ask
    notebook.metadata.pop("widgets", None)
    notebook.cells[0].source += f"\n\n{run_it(source.name, repository)}"
    nbformat.write(notebook, PAGES / "notebooks" / source.name)
    print(f"{source.name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return not failed


def write_tour(tour: Tour) -> dict[str, str]:
    """Its page, and one of the site around it, whose entry in the navigation is returned."""
    file = f"{tour.name}_page.html"
    style = f"width:100%; height:{FRAME_HEIGHT}px; border:0"
    tour.page.save(PAGES / "runs" / file)
    text = (
        f"---\nhide: [toc]\n---\n\n# {tour.title}\n\n{tour.text}\n\n[Open it in a window of its own]({file})\n\n"
        f'<iframe src="{file}" title="{tour.title}" style="{style}"></iframe>\n'
    )
    (PAGES / "runs" / f"{tour.name}.md").write_text(text, encoding="utf-8")
    return {tour.title: f"runs/{tour.name}.md"}


def mend_links(site: Path, entries: Mapping[str, str] | None = None, root: Path = ROOT) -> None:
    """Links of notebooks to other pages lead to those; links to a module, or to a name in it (``buffer.py#Buffer``), to
    its entry in the reference; links to another file of the repository, to a copy of its text. ``entries``: pages and
    places in them, by dotted names."""
    for page in site.rglob("*.html"):

        def mended(link: re.Match[str], page: Path = page) -> str:
            target = (page.parent / link[1]).resolve()
            if target.exists() or not target.is_relative_to(site.resolve()):
                return link[0]
            if target.suffix in (".md", ".ipynb") and target.with_suffix(".html").exists():
                return f'href="{link[1].removesuffix(target.suffix)}.html{link[2] or ""}"'
            file = root / target.relative_to(site.resolve())
            if file == root / "README.md":
                start = os.path.relpath(site.resolve() / "index.html", page.resolve().parent)
                return f'href="{start}{link[2] or ""}"'
            if file.is_relative_to(root / "mine"):  # a learner's, which is no part of a site: text without a link
                return 'aria-disabled="true"'
            if not file.is_file():
                return link[0]
            module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            entry = (entries or {}).get(module + (link[2] or "").replace("#", "."))
            if entry is not None:
                return f'href="{os.path.relpath(site, page.parent)}/{entry}"'
            copy = target.with_name(f"{target.name}.txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
            return f'href="{link[1]}.txt"'

        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'href="([^":#?]+)(#[^"]*)?"', mended, text), encoding="utf-8")


class _Links(HTMLParser):
    """What a page refers to, and what of it can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.names.add(value)


def dead_links(site: Path) -> list[str]:
    """Links to files of the site, or to places in them, that are not there; "PAGE: LINK" each."""
    pages = {page.resolve(): _Links(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}
    dead = []
    for page, found in pages.items():
        if page.name == "404.html":  # a server shows it in the place of any page, so its links begin at the root
            continue
        for link in dict.fromkeys(found.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            is_there = target.is_file() or (target / "index.html").is_file()
            has_name = not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].names
            if not is_there or not has_name:
                dead.append(f"{page.relative_to(site.resolve())}: {link}")
    return dead


def write_documents() -> list[dict[str, Any]]:
    """README, docs and the reference, and their entries in the navigation."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in ("docs", "api"):
        (PAGES / folder).mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (PAGES / "index.md").write_text(re.sub(r"\]\(docs/pictures/", "](pictures/", readme), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", PAGES / "pictures")
    shutil.copy(HERE / "wide.css", PAGES)
    docs = sorted((ROOT / "docs").glob("*.md"))
    for page in docs:
        shutil.copy(page, PAGES / "docs")
    return [
        {"Start": "index.md"},
        {"API": ["docs/api.md", *reference.write_pages(PAGES / "api")]},
        {"Docs": [f"docs/{page.name}" for page in docs if page.name != "api.md"]},
    ]


def build(navigation: list[dict[str, Any]]) -> list[str]:
    """The site of what is in PAGES. Links in it that lead nowhere, which are no error of MkDocs'."""
    config = {"INHERIT": str(HERE / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "html", "nav": navigation}
    python = {"paths": [str(ROOT)], "options": {"extensions": [f"{HERE / 'reference.py'}:Docstrings"]}}
    config["plugins"] = {"mkdocstrings": {"handlers": {"python": python}}}
    (MADE / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(MADE / "mkdocs.yml")]
    subprocess.run(command, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    with (MADE / "html" / "objects.inv").open("rb") as file:
        found = Inventory.parse_sphinx(file, domain_filter=["py"])
    mend_links(MADE / "html", {name: item.uri.replace("$", name) for name, item in found.items()})
    return dead_links(MADE / "html")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", help="beginnings of names, with commas: 00,01")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub, for links to where notebooks run")
    options = parser.parse_args()
    notebooks = chosen(options.notebooks)
    os.chdir(ROOT)  # sources are named from here
    start, *rest = write_documents()
    for folder in ("notebooks", "runs"):
        (PAGES / folder).mkdir()
    runs = [write_tour(tour) for tour in tours()]
    done = [execute(notebook, options.repository) for notebook in notebooks]
    shown = [{"Runs, step by step": runs}, {"Notebooks": [f"notebooks/{path.name}" for path in notebooks]}]
    dead = build([start, *shown, *rest])
    for link in dead:
        print(f"a link that leads nowhere: {link}", file=sys.stderr)
    print("build/site/html/index.html")
    return 0 if all(done) and not dead else 1


if __name__ == "__main__":
    sys.exit(main())
