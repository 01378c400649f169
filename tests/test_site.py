"""The site: every page is in a table of contents, every public name has a page, links between files lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

import trellis
from trellis import constraints, hmm, testing, vhmm

ROOT = Path(__file__).parent.parent
DOCS, TUTORIALS = ROOT / "docs", ROOT / "examples" / "tutorials"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
BUILT = {"_build", "tutorials", "generated"}
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"```.*?```", re.DOTALL)
# the others take longer; `make docs` runs all of them
SHORT = (
    "02_coming_from_hmmlearn",
    "03_proteins",
    "04_event_logs",
    "07_constrained_generation",
    "08_lds_vectors",
    "10_exact_inference",
)


def own_pages() -> list[Path]:
    return [path for path in PAGES if not BUILT & set(path.relative_to(ROOT).parts)]


def entries(page: Path) -> list[Path]:
    """The pages in the tables of contents of a page."""
    lines = [line for block in TOCTREE.findall(page.read_text(encoding="utf-8")) for line in block.splitlines()]
    return [page.parent / f"{line}.md" for line in lines if line and not line.startswith(":")]


def test_every_page_is_in_a_table_of_contents() -> None:
    seen, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if "tutorials" not in page.parts:
            seen.add(page)
            waiting += entries(page)
    assert seen == {page for page in own_pages() if page.is_relative_to(DOCS)}


def slug(heading: str) -> str:
    """The anchor of a heading on the site and on code hosts."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", own_pages(), ids=lambda page: page.name)
def test_links_between_files(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            text = FENCE.sub("", target.read_text(encoding="utf-8"))
            assert anchor in map(slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)), link


@pytest.mark.parametrize("module", [trellis, constraints, hmm, vhmm, testing], ids=lambda module: module.__name__)
def test_every_public_name_has_a_reference_page(module: ModuleType) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"\btrellis\.([\w.]+)", text))
    short = module.__name__.removeprefix("trellis").lstrip(".")
    for name in module.__all__:
        assert shown & {name, f"{short}.{name}"}, name


@pytest.mark.parametrize("name", SHORT)
def test_short_tutorials(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = runpy.run_path(str(TUTORIALS / f"{name}.py"))
    pyplot = found["plt"]
    assert pyplot.get_fignums()
    pyplot.close("all")
    assert capsys.readouterr().out.count("\n") > 5


def test_tutorials_are_listed() -> None:
    assert {*SHORT} <= {path.stem for path in TUTORIALS.glob("*.py")}
    for path in TUTORIALS.glob("*.py"):
        assert re.match(r'r?"""\n.+\n=+\n', path.read_text(encoding="utf-8")), path.name


def test_times_on_a_gpu_are_stored_results() -> None:
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    results = ROOT / "experiments" / "scaling_hmm_lm" / "results"
    for run, fastest, row in (
        ("ptb-64k-128", 1, "65,536 states on PTB, 12"),
        ("wikitext2-64k", 0, "65,536 states on WikiText-2"),
    ):
        found = [json.loads(path.read_text()) for path in sorted(results.glob(f"{run}.*.json"))]
        (line,) = [line for line in page.splitlines() if row in line]
        assert line.endswith(f"| GPU | {found[fastest]['training']['seconds']:.0f} s |")
        assert {one["hardware"]["device"] for one in found} == {"NVIDIA H200"}
        valid, test = (fmean(one["figures"][split] for one in found) for split in ("valid", "test"))
        assert f": {valid:.1f} / {test:.1f} |" in line
