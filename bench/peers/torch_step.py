#!/usr/bin/env python3
"""Peer: one training step (forward, backward, clip, AdamW) of a model in PyTorch on the CPU.

usage: torch_step.py ARCH MODE DTYPE [--vocab V] [--seq T] [--batch B] [--threads N] [--rounds R]
ARCH pre_ln | hc | mhc | attnres     MODE eager | compile     DTYPE f32 | bf16 (autocast)
Waits for a line on stdin before each timed round, so that a driver can interleave it with another program; prints
`ms STEP_MS` a round and, at the end, `rss BYTES`. The maths is that of models/*.lua; fused attention is PyTorch's own.
"""
import argparse
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

D, LAYERS, HEADS, FF, STREAMS = 256, 8, 8, 688, 4


class Norm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope(x, cos, sin):
    lo, hi = x.float().chunk(2, -1)
    return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(a.transpose(1, 2).reshape(b, t, D))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(D, 2 * FF, bias=False)
        self.down = nn.Linear(FF, D, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Connector(nn.Module):
    """Hyper-connection of one sublayer, dynamic, full mixing."""

    def __init__(self, j):
        super().__init__()
        read = torch.zeros(STREAMS, 1)
        read[j % STREAMS] = 1
        self.static_alpha = nn.Parameter(torch.cat([read, torch.eye(STREAMS)], 1))
        self.static_beta = nn.Parameter(torch.ones(STREAMS))
        self.alpha_proj = nn.Parameter(torch.zeros(D, STREAMS + 1))
        self.beta_proj = nn.Parameter(torch.zeros(D))
        self.alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.beta_scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, x, branch):
        xh = F.rms_norm(x, (D,), None, 1e-8)
        a = self.static_alpha + self.alpha_scale * torch.tanh(xh @ self.alpha_proj)
        b = self.static_beta + self.beta_scale * torch.tanh(xh @ self.beta_proj)
        m = a.transpose(-1, -2).to(x.dtype) @ x
        return m[..., 1:, :] + b[..., None] * branch(m[..., 0, :])[..., None, :]


def sinkhorn(y, steps=20, eps=1e-6):
    p = torch.softmax(y, -1) + eps
    p = p / (p.sum(-2, keepdim=True) + eps)
    for _ in range(steps - 1):
        p = p / (p.sum(-1, keepdim=True) + eps)
        p = p / (p.sum(-2, keepdim=True) + eps)
    return p


class ManifoldConnector(nn.Module):
    """Manifold-constrained hyper-connection of one sublayer; phi as a bf16 product under autocast, the rest in f32."""

    def __init__(self, j):
        super().__init__()
        n = STREAMS
        read, mix = torch.full([n], -8.0), torch.full([n, n], -8.0)
        read[j % n] = 8
        mix.fill_diagonal_(0)
        self.phi = nn.Parameter(torch.zeros(n * D, n * n + 2 * n))
        self.b = nn.Parameter(torch.cat([read, torch.zeros(n), mix.flatten()]))
        self.gains = nn.Parameter(torch.full([3], 0.01))

    def forward(self, x, branch):
        n, flat = STREAMS, x.flatten(-2)
        rho = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + 1e-6)
        z = rho * (flat @ self.phi).float()
        pre = torch.sigmoid(self.gains[0] * z[..., :n] + self.b[:n])
        post = 2 * torch.sigmoid(self.gains[1] * z[..., n:2 * n] + self.b[n:2 * n])
        mix = sinkhorn((self.gains[2] * z[..., 2 * n:] + self.b[2 * n:]).unflatten(-1, (n, n)))
        u = (pre[..., None].to(x.dtype) * x).sum(-2)
        return mix.to(x.dtype) @ x + post[..., None].to(x.dtype) * branch(u)[..., None, :]


class DepthMix(nn.Module):
    """Softmax over all sources so far (Full AttnRes): keys are normed sources, values the sources themselves."""

    def __init__(self):
        super().__init__()
        self.query, self.norm = nn.Parameter(torch.zeros(D)), Norm(D, 1e-5)

    def forward(self, sources):
        v = torch.stack(sources)
        w = torch.softmax((self.norm(v) * self.query).sum(-1, keepdim=True).float(), 0)
        return (w.to(v.dtype) * v).sum(0)


CONNECTORS = {"hc": Connector, "mhc": ManifoldConnector}


class Block(nn.Module):
    def __init__(self, arch, layer):
        super().__init__()
        eps = 1e-5 if arch == "attnres" else 1e-6
        self.n1, self.n2 = Norm(D, eps if layer else 1e-6), Norm(D, eps)
        self.attention, self.ffn = Attention(), FeedForward()
        if arch in CONNECTORS:
            self.c1, self.c2 = CONNECTORS[arch](2 * layer), CONNECTORS[arch](2 * layer + 1)
        if arch == "attnres":
            self.m1, self.m2 = DepthMix() if layer else None, DepthMix()
        self.step = {"attnres": self.mix_depth}.get(arch, self.mix_streams if arch in CONNECTORS else self.add)

    def add(self, x, attention, ffn):
        x = x + attention(x)
        return x + ffn(x)

    def mix_streams(self, x, attention, ffn):
        return self.c2(self.c1(x, attention), ffn)

    def mix_depth(self, sources, attention, ffn):
        sources = sources + [attention(self.m1(sources) if self.m1 else sources[0])]
        return sources + [ffn(self.m2(sources))]

    def forward(self, x, cos, sin):
        return self.step(x, lambda u: self.attention(self.n1(u), cos, sin), lambda u: self.ffn(self.n2(u)))


class Model(nn.Module):
    def __init__(self, arch, vocab, seq):
        super().__init__()
        self.arch = arch
        self.embed = nn.Embedding(vocab, D)
        self.blocks = nn.ModuleList(Block(arch, i) for i in range(LAYERS))
        self.norm = Norm(D, 1e-5 if arch == "attnres" else 1e-6)
        self.head = nn.Linear(D, vocab, bias=False)
        self.mix = DepthMix() if arch == "attnres" else None
        hd = D // HEADS
        angle = torch.arange(seq)[:, None] * 10000.0 ** (-torch.arange(0, hd, 2) / hd)[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() == 2 and min(p.shape) > STREAMS * (STREAMS + 2):
                nn.init.trunc_normal_(p, std=0.02, a=-0.06, b=0.06)

    def forward(self, ids, targets):
        x = self.embed(ids)
        if self.arch in CONNECTORS:
            x = x[:, :, None].expand(-1, -1, STREAMS, -1)
        if self.arch == "attnres":
            x = [x]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        if self.arch in CONNECTORS:
            x = x.sum(2) if self.arch == "hc" else x.mean(2)
        if self.arch == "attnres":
            x = self.mix(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("arch", choices=["pre_ln", "hc", "mhc", "attnres"])
    p.add_argument("mode", choices=["eager", "compile"])
    p.add_argument("dtype", choices=["f32", "bf16"])
    p.add_argument("--vocab", type=int, default=4096)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=7)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model = Model(o.arch, o.vocab, o.seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    ids = torch.randint(0, o.vocab, (o.batch, o.seq + 1))
    forward = torch.compile(model) if o.mode == "compile" else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16"):
            loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(3):
        loss = step()
    print(f"ready {loss:.4f}", flush=True)
    for _ in range(o.rounds):
        if not sys.stdin.readline():
            break
        start = time.perf_counter()
        step()
        print(f"ms {(time.perf_counter() - start) * 1e3:.3f}", flush=True)
    print(f"rss {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}", flush=True)


if __name__ == "__main__":
    main()
