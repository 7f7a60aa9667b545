"""A canvas for the pictures of the pages: boxes, arrows and text on a light card, legible on any background."""

from __future__ import annotations

from html import escape

INK, SOFT, LINE, CARD = "#1c2733", "#536274", "#9aa7b5", "#ffffff"
BLUE, ORANGE, GREEN, RED, GREY = "#2f6fb3", "#d9730d", "#2f8f4e", "#c0392b", "#c9d1da"
PALE = {BLUE: "#e3eefa", ORANGE: "#fdeedd", GREEN: "#e2f4e7", RED: "#fbe5e2", GREY: "#f1f4f7"}
FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"


class Canvas:
    """Collects shapes; `text()` of the whole is the SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        italic: bool = False,
        code: bool = False,
    ) -> None:
        """Writes lines, the first with its baseline at y."""
        style = (" font-weight='600'" if bold else "") + (" font-style='italic'" if italic else "")
        font = "font-family='ui-monospace, Menlo, Consolas, monospace'" if code else FONT
        for number, line in enumerate(words.split("\n")):
            at = y + number * size * 1.3
            self.parts.append(
                f"<text x='{x:.0f}' y='{at:.0f}' font-size='{size}' fill='{colour}' "
                f"text-anchor='{anchor}' {font}{style}>{escape(line)}</text>"
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        colour: str = BLUE,
        size: int = 14,
        bold: bool = False,
        code: bool = False,
    ) -> None:
        """A rounded box with centred lines."""
        self.parts.append(
            f"<rect x='{x:.0f}' y='{y:.0f}' width='{width:.0f}' height='{height:.0f}' rx='7' "
            f"fill='{PALE[colour]}' stroke='{colour}' stroke-width='1.5'/>"
        )
        if words:
            lines = words.count("\n")
            first = y + height / 2 + size * 0.35 - lines * size * 0.65
            self.text(x + width / 2, first, words, size=size, bold=bold, code=code)

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='2' fill='{colour}'/>"
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        colour: str = SOFT,
        dashed: bool = False,
        width: float = 1.5,
        arrow: bool = False,
    ) -> None:
        """A straight line; with `arrow` it has a head at its end."""
        dash = " stroke-dasharray='5 4'" if dashed else ""
        head = f" marker-end='url(#{'a' + colour[1:]})'" if arrow else ""
        self.parts.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
            f"stroke-width='{width}'{dash}{head}/>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, **options: object) -> None:
        self.line(x1, y1, x2, y2, arrow=True, **options)  # type: ignore[arg-type]

    def svg(self) -> str:
        markers = "".join(
            f"<marker id='a{colour[1:]}' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
            f"markerHeight='7' orient='auto'><path d='M0,0 L10,5 L0,10 z' fill='{colour}'/></marker>"
            for colour in (SOFT, BLUE, ORANGE, GREEN, RED, INK)
        )
        body = "\n".join(self.parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
            f"role='img'>\n<title>{escape(self.title)}</title>\n<defs>{markers}</defs>\n"
            f"<rect x='1' y='1' width='{self.width - 2}' height='{self.height - 2}' rx='10' "
            f"fill='{CARD}' stroke='{GREY}'/>\n{body}\n</svg>\n"
        )
