"""Check a built site: local links lead to files and anchors, and every page can be reached from the front page.

python docs/check.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

UNLINKED = {"search.html"}  # opened by the search box


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        link = found.get("href" if tag in ("a", "link") else "src")
        if link and not urlparse(link).scheme:
            self.links.add(link)


def check(root: Path) -> list[str]:
    """What is wrong with the site, one sentence each."""
    pages = {path: Page(path) for path in root.rglob("*.html") if "_static" not in path.parts}
    wrong, seen, waiting = [], set(), [root / "index.html"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for link in sorted(pages[path].links):
            target, anchor = urldefrag(link.split("?")[0])
            other = (path.parent / unquote(target)).resolve() if target else path
            if not other.exists():
                wrong.append(f"{path.relative_to(root)} links to {link}, which does not exist")
            elif other in pages:
                if unquote(anchor) not in pages[other].anchors:
                    wrong.append(f"{path.relative_to(root)} links to {link}, which has no such anchor")
                if other not in seen and other not in waiting:
                    waiting.append(other)
    lost = {str(path.relative_to(root)) for path in pages.keys() - seen} - UNLINKED
    return wrong + [f"{name} cannot be reached from the front page" for name in sorted(lost)]


if __name__ == "__main__":
    problems = check(Path(sys.argv[1]).resolve())
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(1 if problems else 0)
