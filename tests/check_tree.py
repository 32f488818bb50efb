#!/usr/bin/env python3
"""Rules of the house: includes point one way, no file above 800 lines, op names stay where they belong, file heads.

usage: check_tree.py ROOT    prints each breach as FILE:LINE: text; exit 1 when there is one.
"""
import os
import re
import sys

MAX_LINES = 800
# directory -> prefixes of our own headers that it may include
MAY = {
    "ir": ["ir/"],
    "frontend/lua": ["ir/", "frontend/lua/"],
    "passes": ["ir/", "passes/"],
    "codegen": ["ir/", "codegen/"],
    "runtime": ["ir/base.h", "ir/plan.h", "runtime/"],
    "frontend/cli": [""],
    "tests": [""],
}
CODE = (".c", ".h", ".def", ".lua", ".py", ".sh")
# Map ops are named by the tables alone: elsewhere passes build with ir_NAME() and ask for classes.
MAP_FREE = ("passes/simplify", "passes/merge_dots", "ir/", "tests/")


def map_ops(root):
    text = open(os.path.join(root, "ir/ops.def")).read()
    return set(re.findall(r"^OP\((\w+),\s*MAP,", text, re.M))


def sources(root):
    for top in ("ir", "frontend", "passes", "codegen", "runtime", "models", "tests", "bench", "scripts"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if name.endswith(CODE):
                    yield os.path.relpath(os.path.join(folder, name), root)


def check_includes(path, lines):
    rules = next((MAY[d] for d in sorted(MAY, key=len, reverse=True) if path.startswith(d + "/")), None)
    for number, line in enumerate(lines, 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if found and rules is not None and not any(found[1].startswith(p) for p in rules):
            yield number, f'may not include "{found[1]}": {path.rsplit("/", 1)[0]}/ includes only {", ".join(rules)}'


def check_file(path, lines, ops):
    if len(lines) > MAX_LINES and "/golden/" not in path:
        yield MAX_LINES, f"{len(lines)} lines; the limit is {MAX_LINES}"
    if path.endswith((".c", ".h")):
        yield from check_includes(path, lines)
        if not lines or not lines[0].startswith("//"):
            yield 1, "no file head: what it does, why it is so"
        if not path.startswith(MAP_FREE):
            for number, line in enumerate(lines, 1):
                for op in re.findall(r"\bOP_(\w+)", line):
                    if op in ops:
                        yield number, f"names the map op OP_{op}; build with ir_{op}() or ask for its class"
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line) and not path.endswith("check_tree.py"):
            yield number, "a TODO has no place in the code"


def main():
    root = sys.argv[1]
    ops = map_ops(root)
    breaches = files = 0
    for path in sorted(sources(root)):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            lines = f.read().split("\n")
        files += 1
        for number, text in check_file(path, lines[:-1], ops):
            print(f"{path}:{number}: {text}")
            breaches += 1
    print(f"check_tree: {files} files, {breaches} breaches")
    return 1 if breaches or files < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
