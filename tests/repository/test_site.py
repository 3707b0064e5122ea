"""What `make site` and `make pictures` need: the configuration, the runs that are shown, README's picture."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

pytest.importorskip("matplotlib")
pytest.importorskip("mkdocstrings")

from PIL import Image
from support import ROOT

SITE = ROOT / "docs" / "site"
MOST_BYTES = 300_000


class _Loader(yaml.SafeLoader):
    """MkDocs names Python functions in its configuration."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SITE)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_the_site_can_be_searched_and_is_dark_at_night() -> None:
    config = yaml.load((SITE / "mkdocs.yml").read_text(), Loader=_Loader)
    assert "search" in config["plugins"] and config["plugins"]["mkdocs-jupyter"]["execute"] is False
    theme = config["theme"]
    assert theme["name"] == "material" and theme["font"] is False, "a page loads nothing from elsewhere"
    assert {palette["scheme"] for palette in theme["palette"]} == {"default", "slate"}
    assert all("toggle" in palette for palette in theme["palette"])


def test_readme_shows_a_picture_and_twenty_seconds() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("time_travel.gif", "time_travel.png"):
        assert f"docs/pictures/{name}" in readme.split("## For learners")[0]
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < MOST_BYTES
    with Image.open(ROOT / "docs" / "pictures" / "time_travel.gif") as film:
        times = []
        for frame in range(getattr(film, "n_frames", 1)):
            film.seek(frame)
            times.append(film.info["duration"])
    assert len(times) > 10 and 18_000 <= sum(times) <= 20_000


def test_notebooks_are_chosen_by_how_their_names_begin(module: Any) -> None:
    build = module("build")
    assert [path.stem for path in build.chosen("00,01")] == [
        "00_start_here",
        "01_write_and_signal",
        "01b_for_the_curious",
    ]
    assert len(build.chosen(None)) >= 6
    for wrong in ("", "77", ","):
        with pytest.raises(SystemExit, match="name the beginnings"):
            build.chosen(wrong)


def test_links_lead_to_pages_to_entries_or_to_the_text_of_a_file(module: Any, tmp_path: Path) -> None:
    site, root = tmp_path / "html", tmp_path
    for file in ("html/notebooks/00.html", "html/docs/glossary.html", "kernels/a.cu", "lib/c.py", "mine/b.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("text")
    page = site / "notebooks" / "00.html"
    links = ["../docs/glossary.md#nic", "00.ipynb", "../kernels/a.cu", "../lib/c.py#D", "../lib/c.py", "../mine/b.py"]
    links += ["https://a.test/c.md", "#nic"]
    page.write_text(" ".join(f'<a href="{link}">' for link in links))
    module("build").mend_links(site, {"lib.c.D": "api/lib.html#lib.D"}, root)
    links[:3] = ["../docs/glossary.html#nic", "00.html", "../kernels/a.cu.txt"]
    links[3:5] = ["../api/lib.html#lib.D", "../lib/c.py.txt"]
    shown = " ".join(f'<a href="{link}">' for link in links)
    assert page.read_text() == shown.replace('href="../mine/b.py"', 'aria-disabled="true"')
    assert (site / "kernels" / "a.cu.txt").read_text() == "text"


def test_links_that_lead_nowhere_are_found(module: Any, tmp_path: Path) -> None:
    build = module("build")
    for file, text in {
        "README.md": "text",
        "html/index.html": '<h2 id="for-learners">',
        "html/docs/a.html": '<a href="../README.md#for-learners"><a href="b.html#there"><a href="#here"><p id="here">'
        '<img src="c.png"><a href="https://a.test/d"><a href="../">',
        "html/docs/b.html": '<a href="a.html#not"><a href="e%20f.txt"><p id="there">',
        "html/docs/e f.txt": "text",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    build.mend_links(tmp_path / "html", {}, tmp_path)
    assert "../index.html#for-learners" in (tmp_path / "html/docs/a.html").read_text()
    assert build.dead_links(tmp_path / "html") == ["docs/a.html: c.png", "docs/b.html: a.html#not"]


def test_a_page_says_where_its_notebook_runs(module: Any) -> None:
    run_it = module("build").run_it
    learners = (ROOT / "docs" / "learners.md").read_text()
    assert "#without-installing-anything" in run_it("00.ipynb", "") and "\n## Without installing anything\n" in learners
    links = run_it("00.ipynb", "a/b")
    assert "/github/a/b/blob/main/notebooks/00.ipynb" in links and "codespaces.new/a/b" in links
    assert "mybinder.org/v2/gh/a/b/HEAD?labpath=notebooks/00.ipynb" in links


def test_every_public_name_has_a_docstring(module: Any) -> None:
    reference = module("reference")
    silent, seen = [], 0
    for path, name, one in reference.entries(reference.load()):
        methods = [m for n, m in one.all_members.items() if n[0] != "_" and not m.is_module] if one.is_class else []
        described = [one, *(m for m in methods if m.is_function or "property" in m.labels)]
        silent += [f"{path}.{name}: {m.path}" for m in described if not m.has_docstring]
        seen += len(described)
    assert silent == [] and seen > 200


def test_a_role_in_a_docstring_becomes_a_link_to_what_it_means(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    reference = module("reference")
    package = reference.load()
    places = reference.places(package)
    scope = reference.look_up(package, "ep_lib.moe.buffer.Buffer.combine")

    def written(text: str) -> str:
        return str(reference.as_markdown(text, scope, package, places))

    assert written("as :meth:`dispatch`::\n\n    x") == "as [`dispatch`][ep_lib.Buffer.dispatch]:\n\n    x"
    assert written(":class:`ep_lib.moe.Buffer`") == "[`ep_lib.moe.Buffer`][ep_lib.Buffer]"
    assert written(":class:`PeerTimeout`") == "[`PeerTimeout`][ep_lib.errors.PeerTimeout]", "public, if not imported"
    assert written(":func:`ep_lib.reference.combine`") == "`ep_lib.reference.combine`", "there, and not public"
    assert not caplog.records
    assert written(":meth:`combined`") == "`combined`" and "leads nowhere" in caplog.text


@pytest.mark.slow
def test_the_reference_has_every_public_name_and_no_link_leads_nowhere(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = module("build")
    monkeypatch.setattr(build, "MADE", tmp_path)
    monkeypatch.setattr(build, "PAGES", tmp_path / "pages")
    assert build.build(build.write_documents()) == []
    html = {page.relative_to(tmp_path / "html").as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    for path in module("reference").public_modules():
        page = html[f"api/{path}.html"]
        for name in importlib.import_module(path).__all__:
            found = getattr(importlib.import_module(path), name)
            if isinstance(found, ModuleType):
                assert f"api/{found.__name__}.html" in html, f"{path}.{name} is no module that docs/api.md names"
            else:
                entry = re.search(rf'id="{path}.{name}"|href="[^"]*#ep_lib[.\w]*[.]{name}"', page)
                assert entry, f"{path}.{name} has no entry, and no link to one"
    # From README to the page of combine: two clicks.
    assert 'href="docs/engineers.html"' in html["index.html"]
    assert 'href="../api/ep_lib.html#ep_lib.Buffer.combine"' in html["docs/engineers.html"]
    assert 'id="ep_lib.Buffer.combine"' in html["api/ep_lib.html"]


@pytest.mark.extended
@pytest.mark.slow
def test_every_tour_shows_what_it_says(module: Any) -> None:
    pages = {tour.name: tour.page.html for tour in module("tours").tours()}
    words = {
        "no_syncwarp": "race: ",
        "write_and_signal": "The checker found nothing in this run.",
        "no_credits": "slot reused: ",
        "no_credit_given": "timeout: rank ",
        "source_reused": "source reused: ",
        "networks": "signal overtakes data: ",
    }
    for name, text in words.items():
        assert text in pages[name], name
    assert '"marks":[]' in pages["write_and_signal"]
    assert set(pages) - set(words) == {"ring", "dispatch", "calculator"}
