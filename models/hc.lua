-- Hyper-connections: n residual streams; before each branch a learned, input-dependent mix of them.
local db, bb = require "depthbench", require "backbone"
local n = db.axis("n", "small", db.param("hc.streams", 4, {min = 1, max = 31}))
local m = db.axis("m", "small", n.size)     -- the stream that is written
local t = db.axis("t", "small", n.size + 1) -- column 0 is read by the branch, columns 1..n are the new streams
local dynamic, squash = db.param("hc.dynamic", true), db.param("hc.tanh", true)
local mixing = db.param("hc.mixing", "full", {"full", "none"})
local collapse = db.param("hc.collapse", "sum", {"sum", "mean"})
local readout = db.param("hc.readout", "collapse_norm", {"collapse_norm", "norm_collapse"})
local d, fixed = bb.d, {decay = false}
if db.param("hc.scale_out", true) then bb.out_scale = n.size ^ -0.5 end

local function connect(X, j, name, branch) -- X [b,s,n,d]; j: sublayer
  local function W(role, ...) return db.weight(name .. "_hc." .. role, ...) end
  local function start(s, c) return (c == 0 and s == j % n.size or c == s + 1) and 1 or 0 end
  local a, beta = W("static_alpha", {n, t}, start, fixed), W("static_beta", {n}, 1, fixed)
  if dynamic then
    local xh = X * bb.rms(X, 1e-8)
    local function act(y) return squash and db.tanh(y) or y end
    a = a + W("dynamic_alpha_scale", {}, 0.01) * act(xh:dot(W("dynamic_alpha_proj", {d, t}, 0)))
    beta = beta + W("dynamic_beta_scale", {}, 0.01) * act(xh:dot(W("dynamic_beta_proj", {d}, 0)))
  end
  if mixing == "none" then
    return X + beta * branch(bb.norm((a:slice(t, 0) * X):sum(n), name .. "_norm"))
  end
  local mixed = (a * X):sum(n) -- [b,s,t,d]
  local f = branch(bb.norm(mixed:slice(t, 0), name .. "_norm"))
  return mixed:slice(t, 1, m):rename(m, n) + beta * f
end

local function gather(X) return collapse == "mean" and X:mean(n) or X:sum(n) end

return db.model(function(ids, targets)
  local X = bb.embed(ids) * db.ones(n)
  for layer in db.layers(X) do
    X = layer:block(X, function(X)
      X = connect(X, 2 * layer.index, "attn", bb.attention)
      return connect(X, 2 * layer.index + 1, "ffn", bb.ffn)
    end)
  end
  if readout == "norm_collapse" then return bb.head(gather(bb.norm(X, "final_norm")), targets) end
  return bb.loss(gather(X), targets)
end)
