#!/usr/bin/env python3
"""Holds `depthbench probe` against golden cases of an independent float64 reference (tests/golden/oracle).

usage: oracle.py DEPTHBENCH [--dtype f32|bf16] [CASE.json ...]
A case gives shape, options, seed and, for each tensor, a digest: sum, root of the sum of squares, a weighted sum, the first
and last values; small cases give whole arrays. Parameters and tokens are made here by the counter-based generator of
docs/generator.md. Errors are relative to the largest magnitude (arrays) or to the root of the sum of squares (digests).
Gradients are held to at least 1e-3 of the largest gradient element of the model, since some are zero but for rounding:
that element is exact where whole arrays are given, else the largest that digests prove (root mean square, first and last
values), which is never more. Losses of all optimizer steps are held; norms only of the first, for later ones rest on updates
whose sign is noise where a gradient is zero. KNOWN lists what exceeds the tolerance of f32, with its own and the reason.
"""
import array
import glob
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

# (case, gradient) -> tolerance. Scalars whose gradient is a sum over all rows of terms that cancel to a thousandth of their
# size: the absolute error (1e-6) is that of f32 sums, the relative one is of the small rest.
KNOWN = {
    ("hc.small", "grad.layers.4.ffn_hc.dynamic_alpha_scale"): 5e-4,
    ("hc.early.variant", "grad.layers.0.attn_hc.dynamic_alpha_scale"): 5e-4,
    ("hc.mixing_none.variant", "grad.layers.0.attn_hc.dynamic_alpha_scale"): 5e-4,
}
# Cases whose single gradients no bf16 program holds to 3e-2: their parameters are drawn so large that rounding the operands
# alone moves them further (PyTorch's autocast of the same formulas is beyond it in 3 to 125 tensors of each). There the
# median over the gradients is held instead of each, and the number beyond is printed; the rest is held as ever.
KNOWN_BF16 = ("pre_ln.tiny", "hc.tiny", "hc.small", "hc.paper", "hc.early.variant", "hc.mean.variant",
              "hc.mixing_none.variant", "hc.two_streams.variant")
MASK = (1 << 64) - 1
GOLD = 0x9E3779B97F4A7C15


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return mix64(mix64((seed + GOLD) & MASK) ^ h)


def word(k, i):
    return mix64((k + (i + 1) * GOLD) & MASK)


def uniform(k, i):
    return (word(k, i) >> 40) * 2.0**-24


def size(shape):
    return math.prod(shape)


def static_alpha(name, shape):
    """Read column: 1 at stream j mod n; mixing columns: the identity."""
    n, t = shape
    parts = name.split(".")
    j = 2 * int(parts[1]) + (parts[2] == "ffn_hc")
    return [1.0 if (c == 0 and s == j % n) or c == s + 1 else 0.0 for s in range(n) for c in range(t)]


def test_values(name, shape, seed):
    leaf, d = name.split(".")[-1], shape[-1] if shape else 1
    base = [0.0] * size(shape)
    if leaf == "static_alpha":
        base, scale = static_alpha(name, shape), 0.15
    elif leaf == "static_beta":
        base, scale = [1.0] * size(shape), 0.3
    elif leaf in ("dynamic_alpha_proj", "dynamic_beta_proj"):
        scale = math.sqrt(3 / shape[0])
    elif leaf in ("dynamic_alpha_scale", "dynamic_beta_scale"):
        base, scale = [0.25], 0.125
    elif name == "embed.weight":
        scale = 1.0
    elif name.endswith("norm.weight"):
        base, scale = [1.0] * size(shape), 0.25
    else:
        scale = math.sqrt(3 / d)
    k = key(seed, name)
    return [b + scale * (2 * uniform(k, i) - 1) for i, b in enumerate(base)]


def normal(k, std, n):
    out, attempt = [], 0
    while len(out) < n:
        z = 0.0
        for i in range(12):
            z += uniform(k, 12 * attempt + i)
        z -= 6
        if abs(z) <= 3:
            out.append(std * z)
        attempt += 1
    return out


def paper_values(name, shape, seed, config):
    leaf, n = name.split(".")[-1], size(shape)
    if leaf == "static_alpha":
        return static_alpha(name, shape)
    if leaf == "static_beta" or name.endswith("norm.weight"):
        return [1.0] * n
    if leaf in ("dynamic_alpha_proj", "dynamic_beta_proj"):
        return [0.0] * n
    if leaf in ("dynamic_alpha_scale", "dynamic_beta_scale"):
        return [0.01]
    std = 0.02
    if config["arch"] == "hc" and config["options"]["hc.scale_out"] and name.endswith(("wo.weight", "w_down.weight")):
        std /= math.sqrt(config["options"]["hc.streams"])
    return normal(key(seed, name), std, n)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header, out = json.loads(raw[8 : 8 + n]), {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = (t["shape"], array.array("f", raw[8 + n + begin : 8 + n + end]))
    return out


def write_npy(path, rows):
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (len(rows), len(rows[0]))
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        f.write(array.array("i", [x for row in rows for x in row]).tobytes())


def digest(values):
    total = sum(values)
    dot = sum(x * (((i * 2654435761) & 0xFFFFFFFF) / 2**31 - 1) for i, x in enumerate(values))
    return total, math.sqrt(sum(x * x for x in values)), dot


class Case:
    def __init__(self, path, program, dtype, folder):
        with open(path) as f:
            self.gold = json.load(f)
        self.name, self.program, self.dtype, self.folder = os.path.basename(path)[:-5], program, dtype, folder
        self.tolerance = 1e-4 if dtype == "f32" else 3e-2
        self.worst, self.failures = 0.0, []
        self.by_median = dtype == "bf16" and self.name in KNOWN_BF16
        self.gradient_errors, self.note = {}, ""

    def run(self):
        c, steps = self.gold["config"], self.gold["adamw"]["steps"]
        make = (lambda n, s: test_values(n, s, c["seed"])) if c["init"] == "test" else (
            lambda n, s: paper_values(n, s, c["seed"], c))
        params = {n: (d["shape"], make(n, d["shape"])) for n, d in self.gold["initial"].items()}
        files = [os.path.join(self.folder, f) for f in ("params.safetensors", "tokens.npy", "out.safetensors")]
        write_safetensors(files[0], params)
        write_npy(files[1], self.gold["tokens"])
        shape = {"d_model": c["d"], "n_layer": c["L"], "n_head": c["H"], "n_kv_head": c["Hk"], "head_dim": c["hd"],
                 "ff": c["ff"], "vocab": c["vocab"]}
        shape.update({k: str(v).lower() for k, v in c["options"].items() if k.startswith("hc.")})
        command = [self.program, "probe", c["arch"], "--params", files[0], "--tokens", files[1], "--out", files[2],
                   "--adamw-steps", str(len(steps)), "--lr", str(self.gold["adamw"]["lr"]), "--dtype", self.dtype, "--json"]
        for k, v in shape.items():
            command += ["--set", f"{k}={v}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.failures.append(f"probe exits {done.returncode}: {done.stderr.strip()}")
            return
        events = [json.loads(line) for line in done.stdout.splitlines()]
        self.compare(read_safetensors(files[2]), [e for e in events if e["event"] == "step"], params)

    def hold(self, what, got, want, scale, tolerance=None):
        error = abs(got - want) / max(scale, 1e-30) if math.isfinite(got) else math.inf
        if self.by_median and what.startswith(("grad.", "norm")):
            name = re.split(r"[ \[]", what)[0]
            self.gradient_errors[name] = max(self.gradient_errors.get(name, 0), error)
            return
        tolerance = max(tolerance or 0, self.tolerance)
        self.worst = max(self.worst, error / tolerance)
        if not error <= tolerance:
            self.failures.append(f"{what}: got {got:.9g}, expected {want:.9g} (relative error {error:.2e})")

    def hold_median(self):
        """Also says how many gradients are beyond the tolerance of the others."""
        errors = sorted(self.gradient_errors.values())
        median, beyond = errors[len(errors) // 2], sum(not e <= self.tolerance for e in errors)
        self.worst = max(self.worst, median / self.tolerance)
        self.note = f", {beyond} of {len(errors)} gradients beyond {self.tolerance:g}, median {median:.1e}"
        if not median <= self.tolerance or not math.isfinite(errors[-1]):
            self.failures.append(f"gradients: median error {median:.2e}, largest {errors[-1]:.2e}")

    def largest_gradient(self):
        """Largest element of all gradients, or what is known to be no larger."""
        top = 0
        for name, d in self.gold["tensors"].items():
            if name.startswith("grad."):
                rms = d["l2"] / math.sqrt(max(size(d["shape"]), 1))
                top = max([top, rms] + [abs(x) for x in d["first"] + d["last"] + self.gold.get("full", {}).get(name, [])])
        return top

    def compare(self, out, events, params):
        gold = self.gold
        self.hold("loss", out["loss"][1][0], gold["loss"], abs(gold["loss"]))
        for want, got in zip(gold["adamw"]["steps"], events, strict=True):
            self.hold(f"loss of step {want['step']}", got["loss"], want["loss"], abs(want["loss"]))
            if want["step"] == 1:
                self.hold("norm of step 1", got["grad_norm"], want["grad_norm"], want["grad_norm"])
        top = self.largest_gradient()
        for name, d in gold["tensors"].items():
            if name.startswith("param."):
                self.compare_param(name, d, out, len(gold["adamw"]["steps"]) * gold["adamw"]["lr"])
                continue
            if name not in out or out[name][0] != d["shape"]:
                self.failures.append(f"{name}: missing or of another shape")
                continue
            n = size(d["shape"])
            scale = max(d["l2"], 1e-3 * top * math.sqrt(n) if name.startswith("grad.") else 0)
            total, l2, dot = digest(out[name][1])
            known = KNOWN.get((self.name, name))
            self.hold(name + " l2", l2, d["l2"], scale, known)
            self.hold(name + " sum", total, d["sum"], scale * math.sqrt(n), known)
            self.hold(name + " dot", dot, d["dot"], scale * math.sqrt(n), known)
        for name, want in gold.get("full", {}).items():
            scale = max(max(map(abs, want)), 1e-3 * top if name.startswith("grad.") else 0)
            for i, (a, b) in enumerate(zip(out[name][1], want, strict=True)):
                self.hold(f"{name}[{i}]", a, b, scale)
        if self.gradient_errors:
            self.hold_median()
        for name, (shape, _) in params.items():
            if f"grad.{name}" not in out or f"param.{name}" not in out:
                self.failures.append(f"{name}: no gradient or no updated value")

    def compare_param(self, name, d, out, reach):
        """AdamW moves a value by about lr whatever its gradient: digests are held to the length of the moves."""
        n = size(d["shape"])
        total, _, dot = digest(out[name][1])
        self.hold(name + " sum", total, d["sum"], reach * n / 0.1, 0.1)
        self.hold(name + " dot", dot, d["dot"], reach * n / 0.1, 0.1)


def main():
    args = sys.argv[1:]
    program, dtype = args.pop(0), "f32"
    if args and args[0] == "--dtype":
        dtype = args[1]
        args = args[2:]
    here = os.path.dirname(os.path.abspath(__file__))
    paths = args or sorted(glob.glob(os.path.join(here, "golden/oracle/*.json")))
    failed = 0
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            case = Case(path, program, dtype, folder)
            case.run()
        print(f"{'FAIL' if case.failures else 'ok  '} {case.name:28} {dtype}  worst error {case.worst:.3f} of the tolerance{case.note}")
        for line in case.failures[:8]:
            print("     " + line)
        failed += bool(case.failures)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
