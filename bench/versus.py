#!/usr/bin/env python3
"""Training-step speed of depthbench against PyTorch and JAX on this machine: same model, batch, cores; interleaved.

usage: versus.py [--depthbench PATH] [--python PATH] [--models pre_ln,hc] [--dtypes f32,bf16] [--vocabs 4096,50280]
                 [--modes eager,compile,jax] [--rounds 9] [--seq 256] [--batch 8]
Shape: d_model 256, 8 layers, 8 heads, ff 688 (`small`). Machines drift: in every round each program runs one timed step
after the other (A B C A B C ...); figures are the best of the rounds, ratios compare bests of the same run.
The peers need torch and jax from PyPI in the python given. Prints a Markdown table.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Peer:
    """A program of bench/peers: one timed step for each line on its stdin."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.ready = self.process.stdout.readline().startswith("ready")
        self.times, self.rss = [], 0

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(float(self.process.stdout.readline().split()[1]))

    def close(self):
        self.process.stdin.close()
        for line in self.process.stdout:
            if line.startswith("rss"):
                self.rss = int(line.split()[1])
        self.process.wait()


class Ours:
    def __init__(self, program, model, dtype, vocab, o):
        self.command = [program, "bench", model, "--shapes", "small", "--set", f"vocab={vocab}", "--dtype", dtype, "--seq",
                        str(o.seq), "--batch", str(o.batch), "--threads", str(o.threads), "--steps", "3", "--json"]
        self.times, self.rss = [], 0

    def step(self):
        out = subprocess.run(self.command, capture_output=True, text=True, check=True).stdout
        row = next(json.loads(line) for line in out.splitlines() if '"event":"bench"' in line)
        self.times.append(row["step_ms"])
        self.rss = max(self.rss, row["peak_measured"])

    def close(self):
        pass


def run_cell(o, model, dtype, vocab):
    shape = ["--vocab", str(vocab), "--seq", str(o.seq), "--batch", str(o.batch), "--rounds", str(o.rounds)]
    env = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
    programs = {"depthbench": Ours(o.depthbench, model, dtype, vocab, o)}
    for mode in o.modes.split(","):
        if mode == "jax":
            command = [o.python, f"{HERE}/peers/jax_step.py", model, dtype]
        else:
            command = [o.python, f"{HERE}/peers/torch_step.py", model, mode, dtype, "--threads", str(o.threads)]
        peer = Peer(command + shape, env)
        if peer.ready:
            programs[mode] = peer
        else:
            print(f"{mode}: did not start", file=sys.stderr)
    for _ in range(o.rounds):
        for program in programs.values():
            program.step()
    for program in programs.values():
        program.close()
    tokens = o.batch * o.seq
    ours = min(programs["depthbench"].times)
    for name, program in programs.items():
        best = min(program.times)
        median = sorted(program.times)[len(program.times) // 2]
        print(f"| {model} | {dtype} | {vocab} | {name} | {tokens / best * 1e3:.0f} | {tokens / median * 1e3:.0f} | "
              f"{best / ours:.2f} | {program.rss / 1e9:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--depthbench", default=f"{HERE}/../build/depthbench")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--models", default="pre_ln,hc")
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--vocabs", default="4096,50280")
    p.add_argument("--modes", default="eager,compile,jax")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    o = p.parse_args()
    print("| model | dtype | vocab | program | tok/s best | tok/s median | depthbench is faster by | peak RSS GB |")
    print("|---|---|---|---|---|---|---|---|")
    for model in o.models.split(","):
        for vocab in o.vocabs.split(","):
            for dtype in o.dtypes.split(","):
                run_cell(o, model, dtype, vocab)


if __name__ == "__main__":
    main()
