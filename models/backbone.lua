-- What all architectures share: RMSNorm, rotary positions, grouped causal attention, SwiGLU, untied ends.
-- Every function is plain Lua over db.*: copy one and change it.
local db = require "depthbench"
local c, bb = db.shape, {}

local s = db.axis "s"
local d, f = db.axis("d", "wide", c.d_model), db.axis("f", "wide", c.ff)
local h, g = db.axis("h", "row", c.n_head), db.axis("g", "row", c.n_kv_head)
local p, e = db.axis("p", "small", 2), db.axis("e", "wide", c.head_dim // 2)
local q, k = db.axis("q", "wide", c.n_head * c.head_dim), db.axis("k", "wide", c.n_kv_head * c.head_dim)
local v = db.axis("v", "wide", c.vocab)

bb.d = d
bb.out_scale = 1 -- of the initial wo and w_down

function bb.rms(x, eps) -- 1 / root mean square of a row
  return db.rsqrt((x * x):mean(d) + (eps or 1e-6))
end

function bb.norm(x, name, eps)
  return x * bb.rms(x, eps) * db.weight(name .. ".weight", {d}, 1)
end

function bb.linear(x, name, out, from, scale) -- weight [out, from]
  return x:dot(db.weight(name .. ".weight", {out, from}, db.normal(0.02 * (scale or 1))))
end

-- half-split layout: value i of a head turns with value i + head_dim/2 by position * 10000^(-2i/head_dim)
local angle = db.iota(s) * db.exp(db.iota(e) * (-math.log(10000) / e.size))
local cos, sin = db.constant(db.cos(angle)), db.constant(db.sin(angle))

local function rope(x) -- [b,s,h,p,e]
  local lo, hi = x:slice(p, 0), x:slice(p, 1)
  return db.stack(p, lo * cos - hi * sin, hi * cos + lo * sin)
end

function bb.attention(x)
  local Q = rope(bb.linear(x, "attn.wq", q, d):split(q, h, p, e))
  local K = rope(bb.linear(x, "attn.wk", k, d):split(k, g, p, e))
  local V = bb.linear(x, "attn.wv", k, d):split(k, g, p, e)
  local o = db.attention(Q, K, V):merge(h, p, e, q)
  return bb.linear(o, "attn.wo", d, q, bb.out_scale)
end

function bb.ffn(x)
  local gate, up = bb.linear(x, "ffn.w_gate", f, d), bb.linear(x, "ffn.w_up", f, d)
  return bb.linear(db.silu(gate) * up, "ffn.w_down", d, f, bb.out_scale)
end

function bb.embed(ids)
  return db.gather(db.weight("embed.weight", {v, d}, db.normal(0.02)), ids)
end

function bb.head(y, targets) -- y is normed already
  return db.head_loss(y, db.weight("lm_head.weight", {v, d}, db.normal(0.02)), targets)
end

function bb.loss(x, targets)
  return bb.head(bb.norm(x, "final_norm"), targets)
end

return bb
