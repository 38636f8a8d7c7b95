#!/usr/bin/env python3
"""exchange_svg.py - the picture of the exchanges in docs/, from the messages that the code sends.

usage: exchange_svg.py EXCHANGE_TABLE docs/exchange.svg           draw
       exchange_svg.py EXCHANGE_TABLE docs/exchange.svg --check   exit status 1 when the picture is not of this code

EXCHANGE_TABLE is build/tests/bench/exchange_table.
"""
import json
import math
import subprocess
import sys

W, H, GAP = 250, 250, 20  # a panel
AT = {0: (62, 92), 1: (62, 192), 2: (188, 92), 3: (188, 192)}  # ranks in it: machines side by side
R = 19
INK, SOFT, IN, OUT = "#223", "#889", "#2a7", "#c52"
PANELS = [("strict", "rows", None, "rows to all"), ("strict", "back", None, "product rows home"),
          ("reduce", "rows", None, "rows to all"), ("reduce", "sums", True, "sums, inside a machine"), ("reduce", "sums", False, "sums, between machines"),
          ("alltoall", "rows", None, "rows to ranks of their experts"), ("alltoall", "sums", None, "sums home")]
ROWS = [["strict"], ["reduce"], ["alltoall"]]


def size(n):
    return "%.0f KiB" % (n / 1024) if n >= 10240 else "%.1f KiB" % (n / 1024)


def arrow(out, m, offset):
    (x0, y0), (x1, y1) = AT[m["from"]], AT[m["to"]]
    d = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / d, (y1 - y0) / d
    sx, sy = -uy * offset, ux * offset
    color = IN if m["inside"] else OUT
    x0, y0, x1, y1 = x0 + ux * R + sx, y0 + uy * R + sy, x1 - ux * (R + 5) + sx, y1 - uy * (R + 5) + sy
    out.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f" marker-end="url(#%s)"/>' %
               (x0, y0, x1, y1, color, 1 + min(m["bytes"] / 65536, 3), "in" if m["inside"] else "out"))


def panel(out, x, y, title, messages):
    out.append('<g transform="translate(%d %d)">' % (x, y))
    out.append('<text x="%d" y="16" text-anchor="middle" fill="%s">%s</text>' % (W // 2, INK, title))
    for i, cx in enumerate((62, 188)):
        out.append('<rect x="%d" y="44" width="100" height="186" rx="8" fill="none" stroke="%s" stroke-dasharray="4 3"/>' % (cx - 50, SOFT))
        out.append('<text x="%d" y="58" text-anchor="middle" fill="%s" font-size="10">machine %d</text>' % (cx, SOFT, i))
    for m in messages:
        arrow(out, m, 5)
    for r, (cx, cy) in AT.items():
        out.append('<circle cx="%d" cy="%d" r="%d" fill="#fff" stroke="%s"/><text x="%d" y="%d" text-anchor="middle" fill="%s">%d</text>' %
                   (cx, cy, R, INK, cx, cy + 4, INK, r))
    inside, between = (sum(m["bytes"] for m in messages if m["inside"] == k) for k in (True, False))
    said = ['<tspan fill="%s">%s %s</tspan>' % (color, size(n), where) for color, n, where in ((IN, inside, "inside"), (OUT, between, "between")) if n]
    out.append('<text x="%d" y="36" text-anchor="middle" font-size="10">%s</text>' % (W // 2, " ".join(said)))
    out.append("</g>")


def draw(table):
    width, height = 3 * (W + GAP) + 110, 3 * (H + GAP) + 50
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">' % (width, height), "<defs>"]
    for name, color in (("in", IN), ("out", OUT)):
        out.append('<marker id="%s" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="5" markerHeight="5" orient="auto-start-reverse" markerUnits="userSpaceOnUse">'
                   '<path d="M0 0L6 3L0 6z" fill="%s"/></marker>' % (name, color))
    out.append('</defs>\n<rect width="100%" height="100%" fill="#fff"/>')
    out.append('<text x="12" y="22" fill="%s">One layer on 2 machines with 2 ranks each: %d rows a rank of %d floats, %d of %d experts a row; all messages, and '
               'the bytes of all ranks together</text>' % (INK, table["rows"], table["floats"], table["k"], table["experts"]))
    for i, (kind,) in enumerate(ROWS):
        y = 40 + i * (H + GAP)
        mine = [m for m in table["messages"] if m["exchange"] == kind]
        between = sum(m["bytes"] for m in mine if not m["inside"])
        out.append('<text x="12" y="%d" fill="%s" font-weight="bold">%s</text>' % (y + 130, INK, kind))
        out.append('<text x="12" y="%d" fill="%s" font-size="10">%s</text>' % (y + 146, OUT, size(between) + " between"))
        for j, (_, part, inside, title) in enumerate(p for p in PANELS if p[0] == kind):
            chosen = [m for m in mine if m["part"] == part and (inside is None or m["inside"] == inside)]
            panel(out, 110 + j * (W + GAP), y, title, chosen)
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    table = json.loads(subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout)
    text = draw(table)
    if "--check" not in sys.argv:
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            f.write(text)
        return 0
    with open(sys.argv[2], encoding="utf-8") as f:
        same = f.read() == text
    print("the picture is%s that of the messages (%d)" % ("" if same else " not", len(table["messages"])))
    return 0 if same else 1


sys.exit(main())
