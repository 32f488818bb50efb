#!/usr/bin/env python3
"""The command line as people meet it: examples, refusals, exit codes, JSON, signals, resume, cache.

usage: test_cli.py DEPTHBENCH SOURCE_DIR    runs in a temporary folder; the kernel cache stays beside the program
Every case is a function named test_*; a broken promise is an AssertionError. Shapes are as small as they can be.
"""
import array
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import oracle

PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CACHE = os.path.join(os.path.dirname(PROGRAM), "test-cache")
TINY = "--set d_model=32 --set n_layer=2 --set n_head=2 --set ff=48 --seq 32 --batch 4".split()
TRAIN = ["train", "hc"] + TINY + "--tokenizer bytes --seed 1 --steps 3 --data t.txt".split()
PROBE = "probe hc --set d_model=16 --set n_layer=1 --set n_head=2 --set ff=16 --set vocab=50".split()
README = open(os.path.join(SOURCE, "README.md"), encoding="utf-8").read()


class Result:
    def __init__(self, done, args):
        self.code, self.out, self.err, self.args = done.returncode, done.stdout, done.stderr, args
        self.events = []
        if "--json" in args:
            self.events = [json.loads(line) for line in self.out.splitlines()]


def run(*args, code=0, err="", limit=120, **more):
    """Runs the program; its exit code and a piece of standard error are part of the claim."""
    args = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
    env = dict(os.environ, XDG_CACHE_HOME=CACHE, **more.pop("env", {}))
    done = subprocess.run([more.pop("program", PROGRAM)] + args, capture_output=True, text=True, errors="replace",
                          timeout=limit, env=env, **more)
    assert done.returncode == code, f"{args}: exit code {done.returncode}, expected {code}: {done.stderr[-600:]}"
    assert err in done.stderr, f"{args}: '{err}' is not in: {done.stderr[-600:]}"
    if code in (1, 2, 3):
        assert re.search(r"^(depthbench: error: |.*:\d+: error: )", done.stderr, re.M), f"{args}: {done.stderr[-600:]}"
    if code and "--json" in args:
        last = json.loads(done.stdout.splitlines()[-1])
        assert last["event"] == "error" and last["code"] == code and last["message"], done.stdout[-300:]
    return Result(done, args)


def write(path, content):
    with open(path, "wb") as f:
        f.write(content if isinstance(content, bytes) else content.encode())
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def weights(folder, step):
    return [read(f"{folder}/checkpoints/step-{step}/{name}.safetensors") for name in ("model", "optim")]


def limit_file_size(n):
    def limit():
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))
    return limit


# ---- Examples


def example(line):
    """A line of the help or the README, as it stands; only sizes that take minutes are made small."""
    words = shlex.split(line)
    assert os.path.basename(words[0]) == "depthbench", line
    words = words[1:]
    if words[0] == "train":
        words += ["--steps", "1"]
        if "--val" in words:
            words += "--set d_model=16 --set n_layer=1 --set n_head=2 --seq 64".split()
    if words[0] == "bench":
        words += "--steps 1 --seq 32 --batch 1 --set vocab=500".split()
    return run(words)


def test_help():
    everything = run("-h").out
    assert everything == run().out == run("--help").out == run("help").out
    commands = re.findall(r"^  (\w+) .*\n +\$ (.*)$", everything, re.M)
    assert len(commands) == 7, commands
    for name, line in commands:
        text = run(name, "-h").out
        assert text == run(name, "--help").out == run("help", name).out
        assert f"    $ {line}\n" in text and "Exit codes" in text


def test_examples_of_help():
    shutil.copy("t.txt", "moby.txt")
    listed = run("probe", "hc", "--set", "n_layer=3", "--list", "--json").events
    oracle.write_safetensors("p.safetensors", {e["name"]: (e["shape"], [0.01] * math.prod(e["shape"])) for e in listed})
    oracle.write_npy("t.npy", [[i % 90 for i in range(9)]])
    for _, line in re.findall(r"^  (\w+) .*\n +\$ (.*)$", run("-h").out, re.M):
        example(line)
    assert os.path.exists("out/fused.ir") and os.path.exists("o.safetensors") and os.path.isdir("runs/first")


def test_readme():
    """From a folder that links to the project's data, as a newcomer in the project's root."""
    os.symlink(os.path.join(SOURCE, "data"), "data")
    block = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    train = block[0].strip().split("&& ")[-1]
    assert " train " in train and len(block) == 2 and "ctest" in block[1]
    example(train)
    lines = [line for line in re.findall(r"`(depthbench [^`]*)`", README) if "..." not in line]
    assert len(lines) >= 5, lines
    for line in lines:
        example(line)
    script = re.search(r"^```lua\n(.*?)^```", README, re.M | re.S)[1]
    write("twelve.lua", script)
    run("compile", "twelve.lua", "--strict", TINY)


# ---- Usage


def test_nearest_words():
    run("trian", code=2, err="did you mean train?")
    run("help", "trian", code=2, err="did you mean train?")
    run(TRAIN, "--out", "r", "--lrr", "1", code=2, err="did you mean --lr?")
    run(TRAIN, "--out", "r", "--set", "d_mdel=3", code=2, err="did you mean d_model?")
    run(TRAIN, "--out", "r", "--shape", "tin", code=2, err="did you mean tiny?")
    run("compile", "hcc", code=2, err="did you mean hc?")
    run("compile", "hc", "--print-after", "fuze", code=2, err="did you mean fuse?")
    run("eval", "hc", code=2, err="not built yet")
    run("compile", "keel", code=2, err="not built yet")
    run(TRAIN, "--out", "r", "--layer-stats", "3", code=2, err="not built yet")
    assert not os.path.exists("r")


def test_wrong_values():
    for words, text in (
        ("--out", "needs a value"), ("--steps x", "whole number"), ("--steps 0", "--steps 0"), ("--lr nan", "not a number"),
        ("--lr 0,1", "not a number"), ("--lr -1", "negative"), ("--lr inf", "--lr inf"), ("--batch 0", "--batch"),
        ("--seq 100000000000", "--seq"), ("--micro-batch 3", "multiple"), ("--betas 1,2", "--betas"),
        ("--decay cosin", "choose"), ("--dtype f16", "f32 or bf16"), ("--recompute x", "choose"),
        ("--memory x", "not a size"), ("--threads 5000", "at most"), ("--threads x", "whole number"),
        ("--seed 99999999999999999999999", "whole number"), ("--target gpu", "choose"), ("--val-fraction 2", "leaves nothing"),
        ("--min-lr-ratio 3", "from 0 to 1"), ("--token-dtype u7", "choose"), ("--invalid x", "replace"),
        ("--resume --overwrite", "not both"), ("--steps 1 --tokens 5", "choose one"), ("--json=1", "takes no value"),
        ("--set d_model", "KEY=VALUE"), ("--set d_model=x", "whole number"), ("--set d_model=3.5", "whole number"),
        ("--set hc.streams=x", "not a number"), ("--set hc.tanh=maybe", "hc.tanh"), ("--set hc.mixing=nonne", "choose from"),
        ("--set hc.streams=0", "hc.streams"), ("--set d_model=33", "multiple"), ("--set head_dim=15", "odd"),
        ("--set n_kv_head=3", "multiple"), ("extra", "one MODEL"),
    ):
        run(TRAIN, "--out", "r", words.split(), code=2, err=text)
    run(TRAIN, code=2, err="--out")
    run("train", "hc", "--out", "r", code=2, err="--data")
    run(TRAIN, "--out", "r", "--target", "cuda", code=3, err="cuda")
    run("bench", code=2, err="MODEL")
    run("bench", "pre_ln", "--seq", "0", code=2, err="--seq")
    run("bench", "pre_ln", "--shapes", "", code=2, err="--shapes")
    run("estimate", "hc", "--device", "x", code=2, err="h200")
    run("estimate", "hc", "--shapes", "tiny,smal", code=2, err="small?")
    run("shapes", "x", code=2, err="no argument")
    run("doctor", "x", code=2, err="no argument")
    assert not os.path.exists("r"), "a refused request leaves nothing"


def test_json():
    r = run(TRAIN, "--out", "r", "--json", "--val", "t.txt", "--val-every", "2")
    kinds = [e["event"] for e in r.events]
    assert kinds[0] == "start" and kinds[-1] == "done" and kinds.count("step") == 3 and "val" in kinds
    step = [e for e in r.events if e["event"] == "step"][0]
    assert {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "peak_bytes"} <= set(step)
    (e,) = run("compile", "hc", TINY, "--json").events
    assert {"kernels", "launches", "gemms", "row_bytes_per_token", "row_bytes_bound", "flops_per_token", "planned_bytes",
            "planned_bound", "passes_ms", "compile_ms", "compiled", "cached"} <= set(e)
    for args in (["trian", "--json"], ["--json"], ["train", "hc", "--json"], ["compile", "no.lua", "--json"]):
        run(args, code=2)
    write("bad.lua", b"\xff\xfe\x00 =")
    r = run("compile", "bad.lua", "--json", code=2)
    assert "bad.lua:1: error:" in r.events[-1]["message"]
    for command in ("shapes", "doctor"):
        assert len(run(command, "--json").events) > 5
    run(TRAIN, "--out", b"r\xff".decode(errors="surrogateescape"), "--json")


def test_estimate():
    for model in ("pre_ln", "hc"):
        rows = run("estimate", model, "--shapes", "tiny,400m-L16", "--device", "a100", "--json").events
        table = {e["name"]: e for e in run("shapes", "--json").events}
        for e in rows:
            parts = ("embed", "head", "final_norm", "matrices", "norms", "scheme")
            assert e["params"] == sum(e["params_" + p] for p in parts)
            assert e["params_backbone"] == e["params_matrices"] + e["params_norms"] == table[e["shape"]]["params_backbone"]
    text = run("estimate", "hc", "--device", "h100").out
    assert "residual scheme" in text and "2L(2d*H*hd" in text and "residual scheme" in run(TRAIN, "--dry-run").out


def test_bench():
    r = run("bench", "pre_ln", TINY, "--set", "vocab=97", "--steps", "2", "--csv", "b.csv", "--json", "--breakdown")
    row = next(e for e in r.events if e["event"] == "bench")
    assert row["tokens_per_s"] > 0 and row["peak_planned"] > 0 and row["peak_measured"] > 0
    csv = read("b.csv").decode().splitlines()
    assert len(csv) == 2 and csv[0].startswith("model,shape,tokens_per_s") and csv[1].startswith("pre_ln,tiny,")
    run("bench", "pre_ln", TINY, "--csv", "/nowhere/b.csv", code=1, err="/nowhere/b.csv")


def test_output_full():
    for args in (["shapes"], ["compile", "hc"] + TINY, ["-h"]):
        with open("/dev/full", "w") as full:
            env = dict(os.environ, XDG_CACHE_HOME=CACHE)
            done = subprocess.run([PROGRAM] + args, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
        assert done.returncode == 1 and "standard output" in done.stderr, (args, done.returncode, done.stderr)


def test_plain_output():
    for env in ({}, {"NO_COLOR": "1"}):
        r = run("compile", "hc", TINY, env=env)
        assert "\x1b" not in r.out + r.err and "\r" not in r.out
        assert "\x1b" not in run("compile", "bad.lua", code=2, env=env).err


# ---- compile


def test_ir_round_trip():
    for model in ("pre_ln", "hc"):
        run("compile", model, TINY, "--emit", "ir", "-o", "one")
        run("compile", "one/model.ir", "--emit", "ir", "-o", "two")
        assert read("one/model.ir") == read("two/model.ir")


def test_emit():
    run("compile", "hc", TINY, "--emit", "ir,graph,fused,plan,kernels", "-o", "all")
    names = os.listdir("all")
    assert {"model.ir", "graph.ir", "fused.ir", "plan.txt"} <= set(names)
    kernels = [n for n in names if n.endswith(".c")]
    assert len(kernels) > 10
    r = run("compile", "hc", TINY, "--emit", f"kernels={kernels[0][:-2]}")
    assert r.out == read("all/" + kernels[0]).decode()
    assert run("compile", "hc", TINY, "--emit", "plan").out == read("all/plan.txt").decode()
    run("compile", "hc", "--emit", "ir,x", code=2, err="choose from")
    run("compile", "hc", "--emit", "cubin", code=2, err="not built yet")
    run("compile", "hc", TINY, "--emit", "kernels=nonesuch", code=2, err="no kernel is named")
    run("compile", "hc", TINY, "--emit", "ir", "-o", "t.txt", code=1, err="t.txt")


def test_print_passes():
    def headings(*args):
        return re.findall(r"^# ---- (\w+ \w+) ----$", run("compile", "hc", TINY, *args).out, re.M)
    assert headings("--print-after", "fuse") == ["after fuse"]
    assert headings("--print-before", "fuse") == ["before fuse"]
    assert headings("--print-after", "simpl*") == ["after simplify", "after simplify2"]
    assert len(headings("--print-after", "all")) >= 9
    assert "after autodiff" in headings("--print-changed")


def test_dead_parameters():
    write("dead.lua", """local db, bb = require "depthbench", require "backbone"
return db.model(function(ids, targets)
  local x = bb.embed(ids)
  for layer in db.layers(x) do
    x = layer:block(x, function(x)
      local unused = bb.norm(x, "dead_norm")
      return x + bb.ffn(bb.norm(x, "ffn_norm"))
    end)
  end
  return bb.loss(x, targets)
end)
""")
    r = run("compile", "dead.lua", TINY)
    warned = re.findall(r"^dead.lua:6: warning: .*layers\.(\d)\.dead_norm\.weight$", r.err, re.M)
    assert warned == ["0", "1"], r.err
    run("compile", "dead.lua", TINY, "--strict", code=2, err="dead.lua:6: error: ")
    write("none.lua", "return require('depthbench').model(function() return require('depthbench').ones() end)")
    run("compile", "none.lua", TINY, code=2, err="no trained parameter")
    for model in ("pre_ln", "hc"):
        assert not run("compile", model, TINY, "--strict").err


def test_scripts():
    write("loop.lua", "while true do end")
    write("grow.lua", "local s = 'x' while true do s = s .. s end")
    write("rep.lua", "return string.rep('x', 1e10)")
    write("files.lua", "return io.open('t.txt')")
    write("run.lua", "return os.execute('true')")
    write("empty.lua", "")
    write("empty.ir", "")
    os.mkdir("folder.lua")
    for name in ("loop", "grow", "rep", "files", "run", "empty"):
        start = time.time()
        r = run("compile", name + ".lua", code=2, err=f"{name}.lua:1: error: ")
        assert time.time() - start < 20, name
    run("compile", "empty.ir", code=2, err="empty.ir:1: error: ")
    run("compile", "folder.lua", code=2, err="folder.lua")
    run("compile", "none.lua", code=2, err="none.lua: No such file")


# ---- Data


def test_bad_data():
    write("empty.txt", "")
    write("short.txt", "short")
    write("bad.txt", b"good \xff\xfe bad" * 100)
    write("ids.bin", array.array("H", [i % 40 for i in range(7777)] + [60000] + [1] * 2222).tobytes())
    os.makedirs("nothing", exist_ok=True)
    base = [a for a in TRAIN if a != "t.txt" and a != "--data"] + ["--out", "r", "--data"]
    for name, text in (("none.txt", "No such file"), ("empty.txt", "empty"), ("short.txt", "6 ids in all"),
                       ("bad.txt", "byte 5: not UTF-8"), ("nothing", "no data files")):
        run(base, name, code=2, err=text)
        run(base, "t.txt", "--val", name, code=0 if name == "short.txt" else 2, err="" if name == "short.txt" else text)
        shutil.rmtree("r", ignore_errors=True)
    tokens = ["train", "hc"] + TINY + "--steps 1 --out r --set vocab=50280 --token-dtype u16 --data".split()
    r = run(tokens, "ids.bin", code=2, err="60000")
    assert "7777" in r.err and "50280" in r.err, r.err
    run(TRAIN, "--out", "r", "--tokenizer", "none.json", code=2, err="none.json")
    run(TRAIN, "--out", "r", "--tokenizer", "t.txt", code=2, err="not valid JSON")
    assert not os.path.exists("r")
    if os.getuid() == 0:
        write("secret.txt", "x" * 5000)
        os.chmod("secret.txt", 0)
        os.chmod(".", 0o755)
        nobody = {"preexec_fn": lambda: os.setuid(65534)}
        try:  # the program itself may lie where only root looks
            subprocess.run([PROGRAM, "-h"], capture_output=True, **nobody)
        except PermissionError:
            return
        run(base, "secret.txt", code=2, err="Permission denied", **nobody)


# ---- Runs


def test_run_folder():
    run(TRAIN, "--out", "r")
    assert {"config.json", "model.lua", "metrics.jsonl", "checkpoints"} <= set(os.listdir("r"))
    run(TRAIN, "--out", "r", code=2, err="a run is there already")
    run(TRAIN, "--out", "none", "--resume", code=2, err="nothing to resume")
    run(TRAIN, "--out", "r", "--resume", "--lr", "1e-4", code=2, err="lr was")
    assert "nothing to do" in run(TRAIN, "--out", "r", "--resume").out
    run(TRAIN, "--out", "r", "--overwrite")
    run(TRAIN, "--out", "t.txt", code=2, err="t.txt")
    run(TRAIN, "--out", "/proc/r", code=2, err="/proc/r")
    os.makedirs("other")
    write("other/mine", "")
    run(TRAIN, "--out", "other", "--overwrite", code=2, err="other things")
    assert os.listdir("other") == ["mine"]
    run(TRAIN, "--out", "dry", "--dry-run")
    assert not os.path.exists("dry")


def test_resume_is_bitwise():
    run(TRAIN, "--out", "whole", "--steps", "6", "--warmup", "1")
    run(TRAIN, "--out", "parts", "--steps", "6", "--warmup", "1", "--save-every", "3", "--keep", "9")
    shutil.rmtree("parts/checkpoints/step-6")
    run(TRAIN, "--out", "parts", "--steps", "6", "--warmup", "1", "--resume")
    assert weights("whole", 6) == weights("parts", 6)


def test_threads_give_the_same_bits():
    for n in (1, 2, 3):
        run(TRAIN, "--out", f"r{n}", "--threads", str(n))
    assert weights("r1", 3) == weights("r2", 3) == weights("r3", 3)


def test_locale():
    """Where a locale with a decimal comma is installed; else the environment alone is tried."""
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split() if shutil.which("locale") else []
    comma = next((x for x in listed if x.lower().startswith(("de_", "fr_", "cs_", "tr_"))), "de_DE.UTF-8")
    for name, env in (("c", {"LC_ALL": "C"}), ("comma", {"LC_ALL": comma, "LANG": comma})):
        run(TRAIN, "--out", name, "--lr", "0.001", env=env)
    assert weights("c", 3) == weights("comma", 3) and read("c/config.json") == read("comma/config.json")


def test_not_finite():
    r = run(TRAIN, "--out", "r", "--lr", "1e30", "--json", code=1, err="first tensor that is not finite")
    assert "step 2" in r.err and not os.path.exists("r/checkpoints/step-2")
    run(TRAIN, "--out", "good", "--steps", "2", "--decay", "constant", "--warmup", "0", "--lr", "1e30", "--save-every", "1", code=1)
    for name in os.listdir("good/checkpoints") if os.path.isdir("good/checkpoints") else []:
        _, values = oracle.read_safetensors(f"good/checkpoints/{name}/model.safetensors")["embed.weight"]
        assert all(map(math.isfinite, values))


def test_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        args = [PROGRAM] + TRAIN + ["--steps", "1000000", "--warmup", "10", "--out", f"r{int(number)}", "--json"]
        p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, XDG_CACHE_HOME=CACHE))
        for line in p.stdout:
            if '"step":3,' in line:
                break
        run(TRAIN, "--out", f"r{int(number)}", "--resume", code=2, err="another process")
        p.send_signal(number)
        out, _ = p.communicate(timeout=60)
        last = [json.loads(x) for x in out.splitlines()][-2:]
        assert p.returncode == 128 + number and last[1]["code"] == 128 + number and last[0]["event"] == "checkpoint"
        step = last[0]["step"]
        more = run(TRAIN, "--steps", "1000000", "--warmup", "10", "--out", f"r{int(number)}", "--resume", "--dry-run")
        assert step >= 3 and os.path.exists(f"r{int(number)}/checkpoints/step-{step}/state.json") and more


def test_full_disk():
    run(TRAIN, "--out", "small", code=1, err="File too large", preexec_fn=limit_file_size(100_000))
    assert os.listdir("small/checkpoints") == [] if os.path.exists("small/checkpoints") else True
    run(TRAIN, "--out", "none", code=1, err="File too large", preexec_fn=limit_file_size(1000))
    assert not os.path.exists("none"), os.listdir("none")
    run(TRAIN, "--out", "ok", "--steps", "2")
    before = weights("ok", 2)
    run(TRAIN, "--out", "ok", "--resume", "--steps", "3", code=1, err="File too large", preexec_fn=limit_file_size(100_000))
    assert weights("ok", 2) == before and os.listdir("ok/checkpoints") == ["step-2"]
    run(TRAIN, "--out", "ok", "--resume", "--steps", "3")


# ---- Kernels


def test_cache():
    r = run("compile", "pre_ln", TINY, "--cache", "c", "--json").events[-1]
    assert r["compiled"] > 10 and r["cached"] == 0
    again = run("compile", "pre_ln", TINY, "--cache", "c", "--json").events[-1]
    assert again["compiled"] == 0 and again["cached"] == r["compiled"]
    run(TRAIN, "--out", "r1", "--cache", "c")
    entries = sorted(f"c/{n}" for n in os.listdir("c") if n.endswith(".so"))
    write(entries[0], b"")
    write(entries[1], read(entries[1])[:1000])
    raw = bytearray(read(entries[2]))
    raw[len(raw) // 2] ^= 255
    write(entries[2], bytes(raw))
    damaged = run("compile", "hc", TINY, "--cache", "c", "--set", "vocab=257")
    damaged2 = run("compile", "pre_ln", TINY, "--cache", "c")
    assert (damaged.err + damaged2.err).count("is damaged") in (1, 2), damaged.err + damaged2.err
    run(TRAIN, "--out", "r2", "--cache", "c")
    run(TRAIN, "--out", "r3", "--no-cache")
    assert weights("r1", 3) == weights("r2", 3) == weights("r3", 3)
    r = run("compile", "pre_ln", TINY, "--cache", "/proc/none")
    assert "/proc/none" in r.err


def test_missing_compiler():
    os.makedirs("bin", exist_ok=True)
    env = {"PATH": os.path.abspath("bin"), "CC": ""}
    r = run(TRAIN, "--out", "r", "--no-cache", code=3, err="no C compiler", env=env)
    assert all(name in r.err for name in ("$CC", "cc", "gcc", "clang", "apt-get install")), r.err
    assert not os.path.exists("r")
    run(TRAIN, "--out", "warm", "--steps", "2")
    run(TRAIN, "--out", "r", "--steps", "2", env=env)
    assert re.search(r"^compiler +missing .*apt-get install", run("doctor", env=env).out, re.M)


def test_doctor_says_what_decided():
    assert re.search(r"^threads +ok +3 \(from --threads\)", run("doctor", "--threads", "3").out, re.M)
    one = {min(os.sched_getaffinity(0))}
    text = run("doctor", preexec_fn=lambda: os.sched_setaffinity(0, one)).out
    assert re.search(r"^threads +ok +1 \(from (affinity mask|cores|.*quota.*)\)", text, re.M), text


# ---- probe


def probe_files():
    listed = run(PROBE, "--list", "--json").events
    values = {e["name"]: (e["shape"], oracle.test_values(e["name"], e["shape"], 1)) for e in listed}
    oracle.write_safetensors("p.safetensors", values)
    oracle.write_npy("t.npy", [[i % 50 for i in range(9)]] * 2)
    return values


def test_probe():
    values = probe_files()
    args = PROBE + "--params p.safetensors --tokens t.npy --out o.safetensors".split()
    run(args, "--adamw-steps", "2")
    names = set(oracle.read_safetensors("o.safetensors"))
    assert {"loss", "logits", "hidden.0", "hidden.1"} | {f"{p}.{n}" for n in values for p in ("grad", "param")} == names
    run(args, "--what", "loss,logits")
    assert set(oracle.read_safetensors("o.safetensors")) == {"loss", "logits"}
    os.remove("o.safetensors")
    run(args, "--what", "los", code=2, err="choose from")
    run(args, "--what", ",", code=2, err="choose from")
    name = "layers.0.attn.wq.weight"
    bad = dict(values)
    bad[name] = (values[name][0], [math.nan] + values[name][1][1:])
    oracle.write_safetensors("nan.safetensors", bad)
    run(args, "--params", "nan.safetensors", "--json", code=1, err=name)
    bad = {k: v for k, v in values.items() if k != "embed.weight"}
    bad["extra"], bad[name] = ([2], [1, 2]), ([3], [1, 2, 3])
    oracle.write_safetensors("wrong.safetensors", bad)
    r = run(args, "--params", "wrong.safetensors", code=2)
    assert all(x in r.err for x in ("missing embed.weight", "unexpected extra", name)), r.err
    for row, text in (([3, 60, 1], "id 60 at row 1, position 1: the vocabulary has 50 ids"), ([3, -6, 1], "id -6")):
        oracle.write_npy("b.npy", [[1, 2, 3], row])
        run(args, "--tokens", "b.npy", code=2, err=text)
    oracle.write_npy("one.npy", [[1], [2]])
    for option, name, text in (("--tokens", "one.npy", "two columns"), ("--tokens", "t.txt", "not a numpy file"),
                               ("--tokens", "none", "none"), ("--tokens", ".", "folder"), ("--params", "t.txt", "safetensors"),
                               ("--params", "none", "none"), ("--params", ".", "folder")):
        run(args, option, name, code=2, err=text)
    run(PROBE, code=2, err="--params")
    assert not os.path.exists("o.safetensors")


def test_any_working_directory():
    os.makedirs("deep/er")
    for cwd in ("/", "deep/er"):
        run("compile", "hc", TINY, cwd=cwd)
    os.symlink(PROGRAM, "linked")
    run("compile", "hc", TINY, program=os.path.abspath("linked"))


def main():
    text = "".join(open(os.path.join(SOURCE, "docs", n), encoding="utf-8").read() for n in sorted(os.listdir(SOURCE + "/docs"))
                   if n.endswith(".md"))
    passed = failed = 0
    only = sys.argv[3:]
    for name, test in [(n, f) for n, f in globals().items() if n.startswith("test_")]:
        if only and name not in only:
            continue
        start = time.time()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write("t.txt", text[:60000])
            try:
                test()
                passed += 1
                print(f"ok   {name} ({time.time() - start:.1f} s)", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {name}\n{traceback.format_exc(limit=-2)}", flush=True)
            os.chdir("/")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
