"""HTML and SVG with automatic escaping: plain strings are escaped, and `element` creates markup."""

from html import escape


class Markup(str):
    """A string that is already markup."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """<tag attributes>children</tag>; in attribute names a final _ is dropped and any other becomes a hyphen."""
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    written = "".join(f' {name}="{escape(_attribute(value))}"' for name, value in named)
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: object) -> Markup:
    """Concatenate markup and text."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child)) for child in children))


def section(heading: str, caption: str, *content: Markup) -> Markup:
    """A section of a page: heading, caption and content."""
    return element("section", element("h2", heading), element("p", caption, class_="caption"), *content)


SVG = {"xmlns": "http://www.w3.org/2000/svg"}  # attributes of a standalone picture


def picture(style: str, size: str, label: str, *parts: Markup, **look: object) -> Markup:
    """An SVG with its style, for a page or, with the attributes SVG, standalone."""
    return element("svg", element("style", Markup(style)), *parts, viewBox=size, role="img", aria_label=label, **look)


def _attribute(value: object) -> str:
    """Coordinates to a tenth of a pixel, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
