"""Goldens made again, against the committed ones."""
import json

# Another CPU sums in another order, in float32.
LOSS_TOLERANCE = 0.002


def files(directory):
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix() for path in paths}


def same_model(made, committed):
    """What differs between two golden.json of a model; empty where it is only rounding."""
    made, committed = (json.loads(path.read_text(encoding="utf-8")) for path in (made, committed))
    cases = made.pop("cases"), committed.pop("cases")
    if made != committed or len(cases[0]) != len(cases[1]):
        return "differs"
    for a, b in zip(*cases, strict=True):
        if (a["prompt"], a["ids"]) != (b["prompt"], b["ids"]):
            return f"has other tokens at prompt {a['prompt']}"
        worst = max(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))
        if worst > LOSS_TOLERANCE:
            return f"has losses that differ by {worst:.5f} at prompt {a['prompt']}"
        for x, y in zip(a["greedy"], b["greedy"], strict=True):
            if x != y and x >= 0 and y >= 0:
                return f"has another greedy token at prompt {a['prompt']}"
    return ""


def compare(made, committed):
    """Every difference, in words: tokenizers, weights and configurations to the byte."""
    wrong = []
    for name in sorted(files(made) | files(committed)):
        a, b = made / name, committed / name
        if not a.exists() or not b.exists():
            wrong.append(f"{name} is {'no longer made' if b.exists() else 'not committed'}")
        elif a.read_bytes() == b.read_bytes():
            continue
        elif name.startswith("models/") and a.name == "golden.json":
            if difference := same_model(a, b):
                wrong.append(f"{name} {difference}")
        else:
            wrong.append(f"{name} differs")
    return wrong
