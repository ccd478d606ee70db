#!/usr/bin/env python3
"""Puts what tools/gpu_check left in a directory into one results.json, and prints tables of it.

    tools/gpu_results.py DIR        # DIR/results.json: for bench/results/CARD-DATE.json

Cake's cells stand beside the cell of the paper's tables 3 to 6 (bench/papers) whose ratio of load
to compute time is nearest.
"""
import argparse
import csv
import datetime
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPERS = ROOT / "bench" / "papers"


def device(out):
    """What nvidia-smi's CSV says of it."""
    with open(out / "device.csv", encoding="utf-8") as file:
        names, values = [[cell.strip() for cell in row] for row in csv.reader(file)][:2]
    row = dict(zip(names, values))
    return {"card": row["name"], "driver": row["driver_version"],
            "memory": row["memory.total [MiB]"]}


def steps(out):
    rows = [line.split("\t") for line in (out / "steps.tsv").read_text().splitlines()]
    return {name: {"outcome": outcome, "seconds": int(seconds)} for name, outcome, seconds in rows}


def merge(out):
    """Everything that can be read: a step that was cut short may have left half a file."""
    results = {**device(out), "date": datetime.date.today().isoformat()}
    version = out / "version"
    if version.exists():
        results["version"] = version.read_text().strip()
    results["steps"] = steps(out)
    for path in sorted(out.glob("*.json")):
        if path.name == "results.json":
            continue
        try:
            results[path.stem] = json.loads(path.read_text())
        except ValueError:
            print(f"{path} is not whole, and left out")
    return results


def paper_cells():
    """Ratio of load to compute time, and what Cake took of both, of every cell."""
    cells = []
    for table in (3, 4, 5, 6):
        with open(PAPERS / f"cake_table{table}.csv", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                x_io, x_compute = float(row["x_io"]), float(row["x_compute"])
                cells.append({"ratio": x_io / x_compute, "overlap": 1 / x_io + 1 / x_compute,
                              "against_better": max(1 / x_io, 1 / x_compute),
                              "table": table, "gbps": row["gbps"]})
    return cells


def nearest(cells, ratio):
    return min(cells, key=lambda cell: abs(math.log(cell["ratio"] / ratio)))


def print_cake(rows):
    cells = paper_cells()
    print(f"{'model':<16} {'tokens':>6} {'share':>6} {'link':>9} {'load/compute':>12} {'cake s':>8} "
          f"{'bound/cake':>10} {'vs better':>9} {'overlap':>8} | paper: {'ratio':>7} "
          f"{'vs better':>9} {'overlap':>8}")
    cakes = [row for row in rows if row["policy"] == "cake"]
    for row in cakes:
        paper = nearest(cells, row["ratio"])
        link = row["link_gbit"] if row["link_gbit"] is not None else "-"
        print(f"{row['model']:<16} {row['context']:>6} {row['compute_share']:>6} {link:>9} "
              f"{row['ratio']:>12.3f} {row['ttft_s']:>8.3f} {row['efficiency']:>10.3f} "
              f"{row['against_better']:>9.2f} {row['overlap']:>8.2f} |        {paper['ratio']:>7.3f} "
              f"{paper['against_better']:>9.2f} {paper['overlap']:>8.2f}")
    if cakes:
        efficiency = [row["efficiency"] for row in cakes]
        print(f"bound/cake: mean {sum(efficiency) / len(efficiency):.3f} (goal 0.95), least "
              f"{min(efficiency):.3f} (0.90); most of the better lane "
              f"{max(row['against_better'] for row in cakes):.3f} (1.02)")


def print_speeds(results):
    for row in results.get("prefill", []):
        print(f"prefill {row['model']} {row['tokens']}: {row['tok_per_s']:.0f} tokens/s, "
              f"{row['share_of_peak']:.1%} of the matmul rate (goal 70%)")
    for row in results.get("transformers", {}).get("rows", []):
        if row["kvcake_over_this"]:
            print(f"prefill {row['model']} {row['tokens']}: {row['kvcake_over_this']:.2f} x "
                  "transformers (goal 1.2)")
    for row in results.get("decode", []):
        if row["measure"] == "decode":
            print(f"decode {row['model']} batch {row['sequences']}: {row['tok_per_s']:.0f} tokens/s, "
                  f"{row['share_of_roofline']:.1%} of the bound by {row['limit']} (goal 85%)")
    for row in results.get("load", []):
        of = row.get("fio_bytes_per_s") or row.get("plain_bytes_per_s")
        if of:
            print(f"{row['op']} {row['chunk_bytes'] >> 20} MiB: {row['bytes_per_s'] / 1e9:.2f} GB/s, "
                  f"{row['bytes_per_s'] / of:.1%} of {'fio' if 'fio_bytes_per_s' in row else 'plain'}")
        if "slowdown" in row:
            print(f"a slice beside loads from {row['source']}: {row['slowdown']:.3f} times as long "
                  "(goal below 1.05)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    out = parser.parse_args().out
    results = merge(out)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print_speeds(results)
    print_cake([row for name, rows in sorted(results.items()) if name.startswith("cake")
                for row in rows])


if __name__ == "__main__":
    main()
