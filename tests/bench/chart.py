#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/latency.svg from the table of docs/performance.md: the rate of each reader over the
round-trip time. Writes to standard output.

    chart.py docs/performance.md > docs/latency.svg
"""

import math
import re
import sys

HEAD = "| MB/s at a round-trip time of |"
LINK = 300  # MB/s, the limit
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 330, 60, 470, 50, 280
COLOURS = ("#9aa5b1", "#5f6b78", "#2f6fb0", "#1b9e77", "#c05a1c")
STYLE = ("text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.grid{stroke:#ddd}"
         ".limit{stroke:#222;stroke-dasharray:5 4}polyline{fill:none;stroke-width:2}")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text):
    """The round-trip times in milliseconds, and the rates by reader."""
    lines = text[text.index(HEAD):].split("\n\n", 1)[0].splitlines()
    times = [float(re.match(r"[\d.]+", cell)[0]) for cell in cells(lines[0])[1:]]
    return times, {name: [float(rate) for rate in rates]
                   for name, *rates in map(cells, lines[2:])}


def draw(times, rows):
    low, high = math.log(times[0]), math.log(times[-1])

    def x(time):
        return LEFT + round((math.log(time) - low) / (high - low) * (RIGHT - LEFT))

    def y(rate):
        return BOTTOM - round(rate / LINK * (BOTTOM - TOP))

    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}">')
    yield f'<style>{STYLE}</style>\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    yield '<text class="head" x="12" y="22">Cold reads over a link of 300 MB/s, MB/s</text>'
    for rate in range(0, LINK, 100):
        yield f'<line class="grid" x1="{LEFT}" y1="{y(rate)}" x2="{RIGHT}" y2="{y(rate)}"/>'
    for rate in range(0, LINK + 1, 100):
        yield f'<text x="{LEFT - 8}" y="{y(rate) + 4}" text-anchor="end">{rate}</text>'
    for time in times:
        yield f'<text x="{x(time)}" y="{BOTTOM + 18}" text-anchor="middle">{time:g} ms</text>'
    yield f'<line class="limit" x1="{LEFT}" y1="{TOP}" x2="{RIGHT}" y2="{TOP}"/>'
    yield f'<text x="{RIGHT + 12}" y="{TOP + 4}">the link</text>'
    yield f'<text x="{(LEFT + RIGHT) // 2}" y="{BOTTOM + 38}" text-anchor="middle">' \
          "round-trip time</text>"
    for number, (name, rates) in enumerate(rows.items()):
        colour, height = COLOURS[number], TOP + 40 + 22 * number
        points = " ".join(f"{x(time)},{y(rate)}" for time, rate in zip(times, rates))
        yield f"<g><title>{name}: {', '.join(f'{rate:g}' for rate in rates)}</title>"
        yield f'<polyline points="{points}" stroke="{colour}"/>'
        yield (f'<rect x="{RIGHT + 12}" y="{height - 6}" width="14" height="4" fill="{colour}"/>'
               f'<text x="{RIGHT + 32}" y="{height}">{name}</text></g>')
    yield "</svg>"


def main():
    with open(sys.argv[1]) as f:
        print("\n".join(draw(*table(f.read()))))


if __name__ == "__main__":
    main()
