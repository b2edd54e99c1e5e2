"""The schedule of a launch as a picture in SVG: a lane for each actor, a box for each piece of work, time to the right.

Boxes come from lowering's simulation, whose step is the estimate's; nothing is drawn that is not there. A long item is
cut, and the axis goes on behind the cut at its own time. Example: two warpgroups in turns are four lanes, between those
of copies and stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

Timeline = Any  # of lowering/cost
Box = Any
STEP_WIDTH = 240  # pixels of a regular step
MIN_WIDTH, MAX_WIDTH = 560, 2600  # pixels of a picture
LANE, GAP, AXIS = 24, 6, 26  # pixels of a lane, between lanes, of the axis above them
CHARACTER, MARGIN = 6.3, 8  # pixels of a letter in a box, and around the text
TICK = 110  # pixels between two ticks, at least
SHOWN_STEP = 1  # that the table lists: the second one is the first that overlaps with another
KINDS = {
    "copy": "copies into shared memory", "product": "matrix products", "special": "special functions",
    "pointwise": "multiply-adds", "store": "stores",
}  # fmt: skip
WORDS = {
    "accumulate": "sum", "largest": "maximum", "weight": "weights", "narrow": "narrow", "operand": "operand",
}  # fmt: skip


@dataclass(frozen=True)
class TimelineView:
    """A picture with what is said of it. lanes: their names, from top to bottom. rows: of the table of one step: lane,
    work, from, to. spent: what the launch's time is for, and all of it at the end. why_not: why there is no picture.
    """

    title: str
    svg: str = ""
    lanes: tuple[str, ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    rows: tuple[tuple[str, str, str, str], ...] = ()
    spent: tuple[tuple[str, str], ...] = ()
    why_not: str = ""


def timeline_view(timeline: Timeline) -> TimelineView:
    """The view of a schedule."""
    spent = tuple((name, microseconds(seconds)) for name, seconds in timeline.spent)
    spent += (("all", microseconds(timeline.seconds)),) if spent else ()
    if timeline.why_not:
        return TimelineView(timeline.title, spent=spent, why_not=timeline.why_not)
    kinds = {box.kind for box in timeline.boxes}
    return TimelineView(
        timeline.title,
        _Picture(timeline).svg(),
        timeline.lanes,
        tuple((kind, name) for kind, name in KINDS.items() if kind in kinds),
        tuple(_notes(timeline)),
        tuple(_rows(timeline)),
        spent,
    )


def microseconds(seconds: float) -> str:
    """A time for readers, of three digits."""
    number = 1e6 * seconds
    digits = max(0, 2 - floor(log10(number))) if number > 0 else 0
    return f"{number:.{min(digits, 4)}f} µs"


def words(boxes: Iterable[Box]) -> dict[str, str]:
    """What boxes do, by their labels: `weights` of "weight 0", numbered where there are several; `k` of "load k"."""
    labels = dict.fromkeys(box.label for box in boxes)
    many = Counter(label.partition(" ")[0] for label in labels)
    found = {}
    for label in labels:
        kind, _, rest = label.partition(" ")
        named = WORDS.get(kind, kind) + (f" {rest}" if many[kind] > 1 or not rest[:1].isdigit() else "")
        found[label] = rest if kind == "load" else named.strip()
    return found


def _notes(found: Timeline) -> Iterator[str]:
    """What a reader has to know to read the picture."""
    drawn = found.steps - found.left_out
    many = f"{found.steps} step{'' if found.steps == 1 else 's'} of {microseconds(found.step)}"
    cut = f"; {drawn} are drawn, and {found.left_out} like the third are left out" if found.left_out else ""
    yield f"One work item of one program, {found.form}: {many}{cut}. The number of a box is its step."
    yield f"Settings: {found.settings}."
    beside = f", {found.programs} at once on each; the boxes of the others are not drawn" if found.programs > 1 else ""
    items = f"{found.items} item{'' if found.items == 1 else 's'}"
    yield f"The launch has {items} for {found.multiprocessors} multiprocessors{beside}."
    yield (
        f"Estimated for an {found.device}, not measured: the order is that of the kernel's text, and times are "
        f"simulated at fitted rates. They are drawn with the factor {found.stretch:.2f}, so that a step takes what the "
        "estimate says, in which warps also wait for one another."
    )
    yield from found.notes


def _rows(found: Timeline) -> Iterator[tuple[str, str, str, str]]:
    step, said = min(SHOWN_STEP, found.steps - 1), words(found.boxes)
    for lane in found.lanes:
        for box in (b for b in found.boxes if b.lane == lane and b.step == step):
            yield lane, said[box.label], microseconds(box.start), microseconds(box.end)


class _Picture:
    """A picture of a timeline: places in pixels."""

    def __init__(self, found: Timeline):
        self.found, self.words = found, words(found.boxes)
        wanted = STEP_WIDTH * found.end / found.step
        self.scale = min(max(wanted, MIN_WIDTH), MAX_WIDTH) / found.end
        self.width = ceil(found.end * self.scale) + 2
        self.height = AXIS + len(found.lanes) * (LANE + GAP)
        self.tops = {lane: AXIS + n * (LANE + GAP) for n, lane in enumerate(found.lanes)}

    def svg(self) -> str:
        found = self.found
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        title = f"Schedule of {found.title} over time, estimated for an {found.device}"
        said = f"{len(found.lanes)} lanes: {', '.join(found.lanes)}. A step takes {microseconds(found.step)}."
        head = f"<title>{escape(title)}</title><desc>{escape(said)} The table below lists one step.</desc>"
        lane = '<rect class="lane" y="{}" width="{}" height="{}"/>'
        lanes = "".join(lane.format(y, self.width, LANE) for y in self.tops.values())
        boxes = "".join(map(self._box, found.boxes))
        return f'<svg class="schedule" role="img" {size}>{head}{lanes}{self._axis()}{boxes}{self._cut()}</svg>'

    def _box(self, box: Box) -> str:
        x, width = box.start * self.scale, max(0.5, (box.end - box.start) * self.scale)
        y, name = self.tops[box.lane], self.words[box.label]
        left_out = self.found.left_out if box.start >= self.found.cut > 0 else 0  # the picture goes on behind them
        step, shift = f"{box.step + 1 + left_out}", left_out * self.found.step
        times = f"{microseconds(box.start + shift)} to {microseconds(box.end + shift)}"
        tip = f"<title>{escape(f'step {step}, {box.lane}: {name}, {times}')}</title>"
        shape = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" rx="2"/>'
        return f'<g class="{box.kind}">{tip}{shape}{self._text(step, name, x, y, width)}</g>'

    def _text(self, step: str, name: str, x: float, y: float, width: float) -> str:
        """As much of the box's text as fits into it."""
        room = (width - MARGIN) / CHARACTER
        text = next((t for t in (f"{step} {name}", step) if len(t) <= room), "")
        return f'<text x="{x + MARGIN / 2:.1f}" y="{y + LANE / 2 + 4:g}">{escape(text)}</text>' if text else ""

    def _axis(self) -> str:
        """Ticks with times. Behind the cut they are of the item's own time."""
        found = self.found
        each = _round_number(TICK / self.scale)
        marks = self._ticks(0.0, found.cut or found.end, 0.0, each)
        if found.cut:
            marks += self._ticks(found.cut, found.end, found.left_out * found.step, each)
        lines = "".join(f"M{x:.1f} {AXIS - 6}V{self.height}" for x, _ in marks)
        texts = "".join(f'<text class="tick" x="{x + 3:.1f}" y="12">{text}</text>' for x, text in marks)
        return f'<path class="ticks" d="{lines}"/>{texts}'

    def _ticks(self, start: float, end: float, shift: float, each: float) -> list[tuple[float, str]]:
        """Places and texts of the ticks between two times, of which the texts say more by the shift."""
        first = ceil(round((start + shift) / each, 6))
        digits = max(0, -floor(log10(each * 1e6)))
        found = []
        while (time := first * each) - shift < end:
            if (x := (time - shift) * self.scale) + 40 < self.width:
                found.append((x, f"{time * 1e6:.{digits}f} µs"))
            first += 1
        return found

    def _cut(self) -> str:
        found = self.found
        if not found.cut:
            return ""
        x, text = found.cut * self.scale, f"{found.left_out} steps left out"
        line = f'<path class="cut" d="M{x:.1f} 14V{self.height}"/>'
        return f'{line}<text class="cut" x="{x + 4:.1f}" y="{AXIS - 3}">{text}</text>'


def _round_number(seconds: float) -> float:
    """The next larger 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(seconds))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= seconds * (1 - 1e-9))

