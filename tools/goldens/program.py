"""What the kvcake program says, against transformers."""
import json
import subprocess
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from goldens.models import BF16_TOLERANCE, F32_TOLERANCE
from goldens.reference import Reference

PATHS = ("bf16-amx", "bf16-dot", "f32-fma", "f32")
TEXT_TOKENS = 1500  # of a real text that the demo model is asked about
TEXT = "LICENSE"


def perplexity(program, model, tokens, path):
    """kvcake's losses; None where this CPU has no such path."""
    command = [program, "perplexity", "--model", model, "--tokens", "-", "--json"]
    command += ["--numeric-path", path]
    done = subprocess.run(command, input=json.dumps(tokens), capture_output=True, text=True)
    if done.returncode != 0:
        if "cannot run the numeric path" in done.stderr:
            return None
        raise RuntimeError(done.stderr.strip())
    answer = json.loads(done.stdout)
    assert answer["numeric_path"] == path, answer["numeric_path"]
    return answer["nll"]


def row(name, path, differences):
    """Prints a line of the table; what is wrong with it, if anything is."""
    mean, worst = sum(differences) / len(differences), max(differences)
    print(f"| {name} | {path} | {len(differences)} | {mean:.5f} | {worst:.5f} |", flush=True)
    tolerance = BF16_TOLERANCE if path.startswith("bf16") else F32_TOLERANCE
    if mean > tolerance:
        return [f"{name} on {path}: a mean difference of {mean:.5f} exceeds {tolerance}"]
    return []


def check_models(program, models):
    """Every golden model on every path, whole prompts."""
    wrong = []
    for directory in sorted(models.iterdir()):
        golden = json.loads((directory / "golden.json").read_text(encoding="utf-8"))
        for path in PATHS:
            differences = []
            for case in golden["cases"]:
                losses = perplexity(program, directory, case["ids"], path)
                if losses is None:
                    break
                pairs = zip(losses, case["losses"], strict=True)
                differences += [abs(x - y) for x, y in pairs]
            else:
                name = f"{golden['family']} ({directory.name})"
                wrong += row(name, path, differences)
    return wrong


def check_demo(program, model, root):
    """The demo model, loaded by transformers, on a real text, and the text's own tokens."""
    text = (root / TEXT).read_text(encoding="utf-8")
    tokens = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = [program, "perplexity", "--model", model, "--file", file.name, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    wrong = []
    if len(json.loads(done.stdout)["nll"]) + 1 != len(tokens):
        wrong.append(f"{model.name}: kvcake makes another number of tokens of {TEXT}")
    tokens = tokens[:TEXT_TOKENS]
    expected = Reference(model).losses(tokens)
    for path in PATHS:
        losses = perplexity(program, model, tokens, path)
        if losses is not None:
            differences = [abs(x - y) for x, y in zip(losses, expected, strict=True)]
            wrong += row(f"{model.name}, on {TEXT}", path, differences)
    return wrong


def check(program, root):
    """Prints the table of models by difference; returns what is wrong with it."""
    program = Path(program).resolve(strict=True)
    print("| model | path | losses | mean difference | largest |\n|---|---|---|---|---|")
    wrong = check_models(program, root / "tests" / "golden" / "models")
    return wrong + check_demo(program, root / "models" / "demo", root)
