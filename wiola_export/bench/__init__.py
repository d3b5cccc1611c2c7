"""Time bundles, and what people could use instead, in turns on one machine."""

from wiola_export.bench.contest import Bench, Contestant, Measured, run_bench
from wiola_export.bench.contestants import contestants, workload_for
from wiola_export.bench.table import from_json, summary, to_json, to_table, versions
from wiola_export.bench.workload import Figures, Workload

__all__ = [
    "Bench",
    "Contestant",
    "Figures",
    "Measured",
    "Workload",
    "contestants",
    "from_json",
    "run_bench",
    "summary",
    "to_json",
    "to_table",
    "versions",
    "workload_for",
]
