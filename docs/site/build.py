"""`make site`: executes the notebooks, writes the pages of runs, and lets MkDocs make a static site of them.

    python docs/site/build.py [--notebooks 00,01]      # all of them if nothing is said

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
from pathlib import Path

import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tours import ROOT, Tour, tours

from ep_lib.workshop.saving import before_saving

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


def execute(source: Path) -> bool:
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


def mend_links(site: Path, root: Path = ROOT) -> None:
    """Links of notebooks to other pages lead to those; links to a file of the repository, to a copy of its text."""
    for page in site.rglob("*.html"):

        def mended(link: re.Match[str], page: Path = page) -> str:
            target = (page.parent / link[1]).resolve()
            if target.exists() or not target.is_relative_to(site.resolve()):
                return link[0]
            if target.suffix in (".md", ".ipynb") and target.with_suffix(".html").exists():
                return f'href="{link[1].removesuffix(target.suffix)}.html{link[2] or ""}"'
            file = root / target.relative_to(site.resolve())
            if file.is_relative_to(root / "mine"):  # a learner's, which is no part of a site: text without a link
                return 'aria-disabled="true"'
            if not file.is_file():
                return link[0]
            copy = target.with_name(f"{target.name}.txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
            return f'href="{link[1]}.txt"'

        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'href="([^":#?]+)(#[^"]*)?"', mended, text), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", help="beginnings of names, with commas: 00,01")
    notebooks = chosen(parser.parse_args().notebooks)
    os.chdir(ROOT)  # sources are named from here
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in ("notebooks", "runs", "docs"):
        (PAGES / folder).mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (PAGES / "index.md").write_text(re.sub(r"\]\(docs/pictures/", "](pictures/", readme), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", PAGES / "pictures")
    shutil.copy(HERE / "wide.css", PAGES)
    for page in sorted((ROOT / "docs").glob("*.md")):
        shutil.copy(page, PAGES / "docs")
    runs = [write_tour(tour) for tour in tours()]
    done = [execute(notebook) for notebook in notebooks]
    config = {
        "INHERIT": str(HERE / "mkdocs.yml"),
        "docs_dir": "pages",
        "site_dir": "html",
        "nav": [
            {"Start": "index.md"},
            {"Runs, step by step": runs},
            {"Notebooks": [f"notebooks/{path.name}" for path in notebooks]},
            {"Docs": [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]},
        ],
    }
    (MADE / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean", "--config-file", str(MADE / "mkdocs.yml")]
    subprocess.run(command, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    mend_links(MADE / "html")
    print("build/site/html/index.html")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
