"""Draws the table of results of docs/performance.md as docs/performance.svg.

Run as: performance_plot.py            writes the plot
        performance_plot.py --check    fails if the plot is not the one of the table, or if a figure of the table is not
                                       in the tables that tests/bench.sh wrote into the page

The first table of the page has one row per measurement: what, Troupe, then one column per peer. A row whose name has
"/s" is a rate, others are times. A dot shows how many times Troupe's time a peer needs.
"""

import html
import math
import os
import re
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
PAGE, PLOT = os.path.join(FOLDER, "performance.md"), os.path.join(FOLDER, "performance.svg")
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1}
LEFT, RIGHT, WIDTH, TOP, ROW = 270, 90, 860, 84, 32
WRITTEN = "<!-- tests/bench.sh writes from here -->", "<!-- to here -->"
LEAST, MOST = 0.5, 10_000  # ends of the axis
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .grid { stroke: #d1d9e0 }
  .one { stroke: #0b6bcb; stroke-width: 2 }
  .axis, .value { font-size: 11px; fill: #59636e }
  .title { font-weight: 600; font-size: 15px }
  .peer0 { fill: #c2410c } .peer1 { fill: #7c3aed } .peer2 { fill: #047857 } .peer3 { fill: #a16207 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .grid { stroke: #3d444d }
    .one { stroke: #58a6ff }
    .axis, .value { fill: #9198a1 }
    .peer0 { fill: #fb923c } .peer1 { fill: #c4b5fd } .peer2 { fill: #34d399 } .peer3 { fill: #facc15 }
  }
"""


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def amount(cell):
    """The number at the start of a cell, in seconds where it has a unit; None for an empty cell."""
    found = re.match(r"([\d.,]+)\s*(us|ms|s)?", cell)
    return float(found[1].replace(",", "")) * SECONDS.get(found[2], 1) if found else None


def table(page):
    """The cells of the table of results, its head first."""
    lines = page.split("## Results", 1)[1].split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("| what "))
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    return [cells(line) for line in [lines[first], *lines[first + 2:last]]]


def unfounded(page):
    """The figures of the table that are not in the tables of tests/bench.sh."""
    measured = page.split(WRITTEN[0], 1)[1].split(WRITTEN[1], 1)[0]

    def known(cell):
        return re.search(rf"(?<![\d.]){re.escape(cell.replace(',', ''))}(?![\d.])", measured)

    return [f"{what}: {cell}" for what, *figures in table(page)[1:] for cell in figures if cell and not known(cell)]


def results(page):
    """Peers, and (what, Troupe's cell, times Troupe's time by peer) of each row."""
    head, *lines = table(page)
    peers = head[2:-1]
    rows = []
    for what, ours, *theirs in lines:
        mine = amount(ours)
        ratios = []
        for cell in theirs[:len(peers)]:
            figure = amount(cell)
            ratios.append(None if figure is None else mine / figure if "/s" in what else figure / mine)
        rows.append((what, ours, ratios))
    return peers, rows


def place(ratio):
    share = (math.log10(ratio) - math.log10(LEAST)) / (math.log10(MOST) - math.log10(LEAST))
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def shown(ratio):
    return f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:.3g}"


def mark(peer, x, y):
    """One shape per peer, so that colours are not needed to read the plot."""
    shape = [f'<circle cx="{x:.1f}" cy="{y}" r="5.5"', f'<rect x="{x - 5:.1f}" y="{y - 5}" width="10" height="10"',
             f'<path d="M{x:.1f} {y - 7}l6.5 12h-13z"', f'<path d="M{x:.1f} {y - 7}l7 7l-7 7l-7-7z"'][peer]
    return f'{shape} class="peer{peer}"/>'


def label(x, y, words, kind="", anchor="start"):
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{named}>{html.escape(words)}</text>'


def legend(peers):
    out, x = ['<path d="M24 42v16" class="one"/>', label(32, 54, "Troupe")], 100
    for number, peer in enumerate(peers):
        out += [mark(number, x, 50), label(x + 12, 54, peer)]
        x += 32 + 8 * len(peer)
    return out


def picture(peers, rows):
    height = TOP + ROW * len(rows) + 36
    bottom = TOP + ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           'role="img" aria-label="How many times Troupe\'s time the peers need">', f"<style>{STYLE}</style>",
           f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="page"/>',
           label(16, 28, "Time that peers need, in multiples of Troupe's (to the right: slower than Troupe)", "title"),
           *legend(peers)]
    for tick in (1, 10, 100, 1000, 10_000):
        x = place(tick)
        out += [f'<path d="M{x:.1f} {TOP - 6}V{bottom}" class="{"one" if tick == 1 else "grid"}"/>',
                label(x, bottom + 18, f"{tick:,}", "axis", "middle")]
    for number, (what, ours, ratios) in enumerate(rows):
        y = TOP + ROW * number + ROW // 2
        out += [f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" class="grid"/>', label(LEFT - 12, y + 4, what, anchor="end")]
        known = sorted((ratio, peer) for peer, ratio in enumerate(ratios) if ratio is not None)
        near = len(known) > 1 and place(known[-1][0]) - place(known[0][0]) < 14
        for (ratio, peer), shift in zip(known, (-5, 5) if near else (0,) * len(known)):
            out.append(mark(peer, place(ratio), y + shift))
        out.append(label(place(max(1, known[-1][0])) + 12, y - 3, ", ".join(shown(r) for r, _ in known), "value"))
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    made = picture(*results(page))
    if sys.argv[1:] == ["--check"]:
        if wrong := unfounded(page):
            sys.exit("not in the tables of tests/bench.sh:\n" + "\n".join(wrong))
        with open(PLOT, encoding="utf-8") as file:
            same = file.read() == made
        sys.exit(None if same else f"{PLOT} is not the plot of the table: run python3 docs/performance_plot.py")
    with open(PLOT, "w", encoding="utf-8") as file:
        file.write(made)


if __name__ == "__main__":
    main()
