#!/usr/bin/env python3
"""summary.py FILE: medians (minimum-maximum) of what compare.py wrote, as Markdown."""
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
def spread(values, unit):
    values = [v * unit for v in values]
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"
sides = list(dict.fromkeys(row["side"] for row in rows))
print("| | " + " | ".join(sides) + " |\n| --- |" + " ---: |" * len(sides))
def line(name, what, key, unit, query=None):
    cells = []
    for side in sides:
        values = [r[key] for r in rows if r["what"] == what and r["side"] == side and r.get("query") == query and key in r]
        cells.append(spread(values, unit) if values else "-")
    print(f"| {name} | " + " | ".join(cells) + " |")
line("first index, s", "index", "wall", 1)
line("CPU, s", "index", "cpu", 1)
line("peak memory, MB", "index", "kb", 1024e-6)
line("index, MB", "index", "octets", 1e-6)
for query in dict.fromkeys(r["query"] for r in rows if r["what"] == "find"):
    line(f"`{query}`, newest 50, ms", "find", "wall", 1000, query)
    line("its CPU, ms", "find", "cpu", 1000, query)
