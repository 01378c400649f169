"""The modules of the explorer's page as one script, for pages that cannot load files: reports and notebooks."""

from __future__ import annotations

import re
from importlib import resources

IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)


def read_static(name: str) -> str:
    """The text of a file of the page."""
    return (resources.files("trellis.explore") / "static" / name).read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """A module and all that it imports, as one script. In the script, module NAME is the object `module_NAME`.

    Every module becomes a function that returns its exports, so that its other names do not clash with those of
    others."""
    written: dict[str, str] = {}

    def write(module: str) -> None:
        source = read_static(f"{module}.js")
        for _, other in IMPORT.findall(source):
            if other not in written:
                write(other)
        names = ", ".join(name for _, name in EXPORT.findall(source))
        body = EXPORT.sub(r"\1 \2", IMPORT.sub(r"const { \1 } = module_\2;\n", source))
        written[module] = f"const module_{module} = (() => {{\n{body}return {{ {names} }};\n}})();\n"

    write(entry)
    return "".join(written.values())
