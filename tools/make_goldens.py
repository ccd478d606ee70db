#!/usr/bin/env python3
"""Makes tests/golden: what Hugging Face computes, for kvcake's tests to compare with.

    tools/make_goldens.py [models] [tokenizers] [chat_templates]   write tests/golden (all unless named)
    tools/make_goldens.py demo                    of the tokenizers, those of models/demo only
    tools/make_goldens.py --check PROGRAM         make all of it elsewhere and compare; then compare
                                                  what the kvcake program says with transformers

models      tiny random models of every family, and transformers' float32 losses on them
tokenizers  tokenizers of every style, and the ids that the tokenizers library makes of strings;
            also for models/demo, whose tokenizer is not copied: to be made again when it changes
chat_templates  conversations as published templates, and some of our own, write them

Needs tools/goldens/requirements.txt; ./dev reference installs that and runs --check.
"""
import argparse
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import transformers

from goldens import chat_templates, compare, models, program, tokenizers

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
KINDS = ("models", "tokenizers", "chat_templates")
BYTES_MAX = 5 << 20  # of what is committed


def make(kinds, out_dir):
    if "models" in kinds:
        models.make(out_dir)
    if "tokenizers" in kinds:
        tokenizers.make(out_dir)
    if "chat_templates" in kinds:
        chat_templates.make(out_dir)


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def write(kinds):
    if "demo" in kinds:
        tokenizers.make_demo(GOLDEN)
    for kind in set(kinds) & set(KINDS):
        shutil.rmtree(GOLDEN / kind, ignore_errors=True)
    make(kinds, GOLDEN)
    total = size(GOLDEN)
    print(f"{GOLDEN.relative_to(ROOT)}: {total} bytes")
    return [f"that is more than {BYTES_MAX}"] if total > BYTES_MAX else []


def check(kvcake):
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        make(KINDS, Path(made))
        wrong = compare.compare(Path(made), GOLDEN)
        count = len(compare.files(Path(made)))
    print(f"\n{count} files made again in {time.monotonic() - began:.0f} s, {len(wrong)} differ\n")
    return wrong + program.check(kvcake, ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="models|tokenizers|chat_templates|demo")
    parser.add_argument("--check", metavar="PROGRAM", help="write nothing; compare")
    arguments = parser.parse_args()
    if not set(arguments.kinds) <= {*KINDS, "demo"}:
        parser.error(f"there are {', '.join(KINDS)} and demo")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = check(arguments.check) if arguments.check else write(arguments.kinds or KINDS)
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
