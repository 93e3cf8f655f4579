"""HTML of elements and texts. Whatever is a text is escaped; only what was made here is not. Pure."""

from __future__ import annotations

from html import escape


class Markup(str):
    """HTML, as opposed to a text."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str) -> Markup:
    """Names of attributes have underscores for dashes, and one behind where Python has the word itself. An empty value
    is an attribute without one."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + (f'="{escape(value)}"' if value else "")
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{shown}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """One behind the other."""
    return Markup("".join(each if isinstance(each, Markup) else escape(each) for each in content))


def table(caption: str, note: str, head: list[str], rows: list[list[str]], *, key: str) -> Markup:
    """The first column names its row. It can be scrolled where it is too wide, with the keyboard as well. `note`: what
    is to be known to read it."""
    columns = element("tr", *(element("th", each, scope="col") for each in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", each) for each in row[1:])) for row in rows
    ]
    whole = element("table", element("caption", caption), element("thead", columns), element("tbody", *body))
    box = element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=caption, id=key)
    return joined(box, element("p", note, class_="note")) if note else box
