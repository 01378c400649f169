"""The documentation site: `make docs` builds it, without the network, into docs/_build/html."""

import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.util.typing import stringify_annotation

import trellis
from trellis.progress import set_quiet

set_quiet()  # tutorials show results, not how fast this machine computed them
ROOT = Path(__file__).parent.parent
project, author, copyright = "Trellis", "The Trellis developers", "the Trellis developers"
version = release = trellis.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "matplotlib.sphinxext.mathmpl",  # equations as pictures: MathJax would need the network
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nitpicky = False
default_role = "literal"  # docstrings write code in single backticks
suppress_warnings = ["config.cache"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline"]

autosummary_generate = True
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "furo"
html_title = f"Trellis {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True}
mathmpl_fontsize = 11.0
mathmpl_srcset = ["2x"]

TUTORIALS = ROOT / "examples" / "tutorials"
sphinx_gallery_conf = {
    "examples_dirs": str(TUTORIALS),
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "min_reported_time": 600,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "reset_modules": ("matplotlib",),
}

LITERAL = r"``.+?``|`[^`]+`|^ *>>>.*(?:\n.*\S.*)*"  # code and doctests
MARKED = re.compile(rf"({LITERAL})|(?<=\w)_(?![\w_])|[*|]", re.MULTILINE)


def add_types(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Add the types of parameters to the section "Parameters" of a docstring, from the annotations."""
    if what not in ("class", "function", "method") or "Parameters" not in lines:
        return
    known = inspect.signature(obj).parameters
    for number in range(lines.index("Parameters") + 2, len(lines)):
        first = lines[number].split(",")[0]
        if not lines[number]:
            break
        if first in known and " : " not in lines[number]:
            shown = stringify_annotation(known[first].annotation, "smart")
            lines[number] += " : " + re.sub(r"~?(\w+\.)+(?=\w)", "", shown).replace("~", "")


def escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what docstrings mean literally but reStructuredText would read as markup: transmat_, p(x | z), a * b."""
    shown = MARKED.sub(lambda found: found[1] or f"\\{found[0]}", "\n".join(lines))
    lines[:] = shown.split("\n")


def is_ours(thing: Any) -> bool:
    """Whether a member is defined in this package, not in torch, scikit-learn or the standard library."""
    for wrapped in ("fget", "func", "__func__"):
        thing = getattr(thing, wrapped, thing)
    owner = getattr(thing, "__objclass__", thing)  # the class of a method written in C, such as tuple.index
    module = getattr(inspect.unwrap(owner) if callable(owner) else owner, "__module__", None)
    return module is None or module.startswith("trellis")


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out members that were inherited from other packages."""
    return None if skipped or is_ours(obj) else True


def link_outside(app: Any, page: str, source: list[str]) -> None:
    """Link to the site's own page of a file outside docs/; on a code host, the link leads to the file. A link whose
    text is the name of a page gets the title of the page instead."""
    source[0] = re.sub(r"\[[\w/-]+\.md\]\(", "[](", source[0])
    up = "../" * page.count("/")
    source[0] = re.sub(rf"\]\({up}\.\./examples/tutorials/(\w+)\.py", rf"]({up}tutorials/\1.rst", source[0])
    source[0] = re.sub(rf"\]\({up}\.\./([A-Z_]+\.md)", rf"]({up}project/\1", source[0])


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", add_types, priority=90)
    app.connect("autodoc-process-docstring", escape, priority=100)  # before numpydoc adds markup of its own
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", link_outside)
