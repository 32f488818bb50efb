#!/usr/bin/env python3
"""Peer: the same training step as torch_step.py in JAX (jit) on the CPU. Same arguments but MODE, same protocol.

usage: jax_step.py ARCH DTYPE [--vocab V] [--seq T] [--batch B] [--rounds R]
"""
import argparse
import resource
import sys
import time

import jax
import jax.numpy as jnp

D, LAYERS, HEADS, FF, STREAMS = 256, 8, 8, 688, 4
HD = D // HEADS


def rms(x, eps):
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def init(key, arch, vocab):
    keys = iter(jax.random.split(key, 2 + 5 * LAYERS))
    matrix = lambda out, inner: 0.02 * jax.random.truncated_normal(next(keys), -3, 3, (out, inner))
    layers = []
    for l in range(LAYERS):
        p = {"n1": jnp.ones(D), "n2": jnp.ones(D), "qkv": matrix(3 * D, D), "out": matrix(D, D),
             "gate_up": matrix(2 * FF, D), "down": matrix(D, FF)}
        if arch == "hc":
            for i, name in enumerate(("c1", "c2")):
                read = jnp.zeros((STREAMS, 1)).at[(2 * l + i) % STREAMS].set(1)
                p[name] = {"sa": jnp.concatenate([read, jnp.eye(STREAMS)], 1), "sb": jnp.ones(STREAMS),
                           "pa": jnp.zeros((D, STREAMS + 1)), "pb": jnp.zeros(D), "ga": jnp.float32(0.01),
                           "gb": jnp.float32(0.01)}
        layers.append(p)
    return {"embed": matrix(vocab, D), "head": matrix(vocab, D), "norm": jnp.ones(D), "layers": layers}


def forward(params, ids, targets, arch, dtype):
    t = ids.shape[1]
    angle = jnp.arange(t)[:, None] * 10000.0 ** (-jnp.arange(0, HD, 2) / HD)[None]
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    mask = jnp.tril(jnp.ones((t, t), bool))
    linear = lambda x, w: x.astype(dtype) @ w.astype(dtype).T

    def rope(x):
        lo, hi = jnp.split(x.astype(jnp.float32), 2, -1)
        return jnp.concatenate([lo * cos - hi * sin, hi * cos + lo * sin], -1).astype(dtype)

    def attention(x, p):
        q, k, v = jnp.split(linear(x, p["qkv"]).reshape(*x.shape[:2], 3, HEADS, HD), 3, 2)
        q, k, v = rope(q[:, :, 0]), rope(k[:, :, 0]), v[:, :, 0]
        s = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) * HD**-0.5
        a = jax.nn.softmax(jnp.where(mask, s, -jnp.inf), -1).astype(dtype)
        return linear(jnp.einsum("bhts,bshd->bthd", a, v).reshape(x.shape), p["out"])

    def ffn(x, p):
        gate, up = jnp.split(linear(x, p["gate_up"]), 2, -1)
        return linear(jax.nn.silu(gate) * up, p["down"])

    def connect(x, c, branch):
        xh = rms(x, 1e-8)
        a = c["sa"] + c["ga"] * jnp.tanh(xh @ c["pa"])
        b = c["sb"] + c["gb"] * jnp.tanh(xh @ c["pb"])
        m = jnp.einsum("btnc,btnd->btcd", a.astype(x.dtype), x)
        return m[:, :, 1:] + (b[..., None] * branch(m[:, :, 0])[:, :, None]).astype(x.dtype)

    x = params["embed"][ids].astype(dtype)
    if arch == "hc":
        x = jnp.repeat(x[:, :, None], STREAMS, 2)
    for p in params["layers"]:
        first = lambda u: attention(rms(u, 1e-6) * p["n1"], p)
        second = lambda u: ffn(rms(u, 1e-6) * p["n2"], p)
        x = connect(connect(x, p["c1"], first), p["c2"], second) if arch == "hc" else x
        if arch != "hc":
            x = x + first(x)
            x = x + second(x)
    if arch == "hc":
        x = x.sum(2)
    logits = linear(rms(x, 1e-6) * params["norm"], params["head"]).astype(jnp.float32)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("arch", choices=["pre_ln", "hc"])
    p.add_argument("dtype", choices=["f32", "bf16"])
    p.add_argument("--vocab", type=int, default=4096)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--rounds", type=int, default=7)
    o = p.parse_args()
    dtype = jnp.bfloat16 if o.dtype == "bf16" else jnp.float32
    params = init(jax.random.key(0), o.arch, o.vocab)
    ids = jax.random.randint(jax.random.key(1), (o.batch, o.seq + 1), 0, o.vocab)
    tree = jax.tree_util.tree_map
    state = (params, tree(jnp.zeros_like, params), tree(jnp.zeros_like, params))

    @jax.jit
    def step(state, k):
        params, m, v = state
        loss, g = jax.value_and_grad(forward)(params, ids[:, :-1], ids[:, 1:], o.arch, dtype)
        norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree_util.tree_leaves(g)))
        g = tree(lambda x: x * jnp.minimum(1, 1 / (norm + 1e-6)), g)
        m = tree(lambda a, x: 0.9 * a + 0.1 * x, m, g)
        v = tree(lambda a, x: 0.95 * a + 0.05 * x * x, v, g)
        params = tree(lambda w, a, b: w * (1 - 1e-5) - 1e-4 * (a / (1 - 0.9**k)) /
                      (jnp.sqrt(b / (1 - 0.95**k)) + 1e-8), params, m, v)
        return (params, m, v), loss

    for k in range(1, 4):
        state, loss = step(state, k)
    print(f"ready {float(loss):.4f}", flush=True)
    for r in range(o.rounds):
        if not sys.stdin.readline():
            break
        start = time.perf_counter()
        state, loss = step(state, r + 4)
        loss.block_until_ready()
        print(f"ms {(time.perf_counter() - start) * 1e3:.3f}", flush=True)
    print(f"rss {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}", flush=True)


if __name__ == "__main__":
    main()
