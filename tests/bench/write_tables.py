"""Write the tables of the documents from what was measured: python write_tables.py [--check].

`docs/bench/NAME.json` is what `wiola-export bench --json` printed. A document has a place for it,
`<!-- bench NAME -->` to `<!-- end -->`. Columns and rows may be chosen there:
`<!-- bench NAME: load, s; peak memory, MB | one bundle; another -->`.
"""

import dataclasses
import re
import sys
from pathlib import Path

from wiola_export import bench
from wiola_export.report.markdown import markdown_table

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/performance.md")
PLACE = re.compile(r"(<!-- bench (\S+?)(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def main(*arguments):
    """Return how many documents were not up to date."""
    stale = 0
    for path in (ROOT / name for name in DOCUMENTS):
        before = path.read_text(encoding="utf-8")
        after = PLACE.sub(table, before)
        stale += before != after
        if "--check" not in arguments:
            path.write_text(after, encoding="utf-8")
    return stale if "--check" in arguments else 0


def table(place):
    """Return a place with what belongs there: where it was measured, and the figures."""
    begin, name, choice, end = place.groups()
    columns, _, rows = (choice or "").partition(" | ")
    found = bench.from_json((ROOT / f"docs/bench/{name}.json").read_text(encoding="utf-8"))
    if rows:
        chosen = {one.name: one for one in found.contestants}
        found = dataclasses.replace(found, contestants=tuple(chosen[r] for r in rows.split("; ")))
    shown = markdown_table(bench.to_table(found, columns.split("; ") if columns else ()))
    told = "" if choice else f"{bench.summary(found)}\n\n{bench.versions(found)}\n\n"
    return f"{begin}\n{told}{shown}\n\n{end}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
