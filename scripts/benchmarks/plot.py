"""Draws a report's JSON: ratio to each peer with its target, and CPU per message. Run by the private interpreter."""

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def bars(report: dict[str, Any]) -> list[tuple[str, float, float | None, bool | None, float, float]]:
    found = []
    for row in report["rows"]:
        for comparison in row["comparisons"]:
            suffix = "" if comparison["framing"] == "bare" else ", session protocol"
            label = f"{row['name']}{suffix}\n{comparison['metric']} : {comparison['peer']}"
            words = comparison["target"].split()
            target = float(words[1]) if words else None
            cpu = (comparison["our_cpu_us"], comparison["their_cpu_us"])
            found.append((label, comparison["ratio"], target, comparison["met"], *cpu))
    return found


def main() -> None:
    source, destination = sys.argv[1:3]
    with open(source) as file:
        report = json.load(file)
    found = bars(report)
    labels, ratios, targets, met, ours, theirs = zip(*found, strict=True)
    places = list(range(len(found)))
    colours = {True: "tab:green", False: "tab:red", None: "tab:grey"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 1.5 + 0.5 * len(found)), sharey=True)
    left.barh(places, ratios, color=[colours[value] for value in met])
    for place, target in zip(places, targets, strict=True):
        if target is not None:
            left.plot([target, target], [place - 0.45, place + 0.45], color="black")
    left.set_xscale("log")
    left.axvline(1.0, color="black", linewidth=0.5)
    left.set_yticks(places, labels, fontsize=7)
    left.invert_yaxis()
    left.set_xlabel("ours : theirs (black mark: target)")
    right.barh([place - 0.2 for place in places], ours, height=0.4, label="shardpool")
    right.barh([place + 0.2 for place in places], theirs, height=0.4, label="peer")
    right.set_xscale("log")
    right.set_xlabel("server CPU, µs per message")
    right.legend()
    versions = report["versions"]
    figure.suptitle(f"shardpool {versions['shardpool']} ({versions['commit']}), {report['machine']['cpu']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(destination, dpi=110)


if __name__ == "__main__":
    main()
