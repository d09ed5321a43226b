# SPDX-License-Identifier: Apache-2.0
"""A table of kernels from Nsight Compute's CSV: launches, mean time, bytes and rate of each.

Use: kernel_table.py FILE.csv (metrics gpu__time_duration.sum and dram__bytes.sum)."""
import csv
import re
import sys

SCALE = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3,
         "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3}


def main():
    lines = [line for line in open(sys.argv[1], errors="replace") if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(lines):
        name = re.sub(r"\(.*", "", row["Kernel Name"]) + " " + row.get("Grid Size", "")
        key = (row["ID"], name)
        value = float(row["Metric Value"].replace(",", ""))
        launches.setdefault(key, {})[row["Metric Name"]] = value * SCALE.get(row["Metric Unit"], 1)
    table = {}
    for (_, name), m in launches.items():
        t = table.setdefault(name, [0, 0.0, 0.0])
        t[0] += 1
        t[1] += m.get("gpu__time_duration.sum", 0.0)
        t[2] += m.get("dram__bytes.sum", 0.0)
    print(f"{'kernel':60} {'n':>4} {'us each':>9} {'MB each':>9} {'GB/s':>7} {'us all':>10}")
    for name, (n, us, mb) in sorted(table.items(), key=lambda x: -x[1][1]):
        if us > 20:
            print(f"{name[:60]:60} {n:4} {us / n:9.2f} {mb / n:9.3f} {mb / us * 1e3:7.0f} {us:10.1f}")


main()
