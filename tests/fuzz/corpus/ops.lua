-- Every kind of call, on small values.
local db = require "depthbench"
local b, s = db.axis "b", db.axis "s"
local d, f, v = db.axis("d", "wide", 8), db.axis("f", "wide", 12), db.axis("v", "wide", db.shape.vocab)
local n, p, t = db.axis("n", "small", 4), db.axis("p", "small", 2), db.axis("t", "small", 3)
local h, e, q = db.axis("h", "row", 2), db.axis("e", "wide", 2), db.axis("q", "wide", 8)
local scale = db.param("scale", 0.5, {min = 0, max = 2})

return db.model(function(ids, targets)
  local x = db.gather(db.weight("embed", {v, d}, db.normal(0.02)), ids)
  for layer in db.layers(x) do
    x = layer:block(x, function(x)
      local y = x:dot(db.weight("q", {q, d}, db.normal(0.1))):split(q, h, p, e)
      local lo, hi = y:slice(p, 0), y:slice(p, 1)
      local o = db.attention(db.stack(p, hi, -lo), y, y, {scale = scale}):merge(h, p, e, q):rename(q, d)
      local X = o * db.ones(n) * db.weight("mix", {n}, function(i) return 1 / (i + 1) end, {decay = false})
      local c = (X:slice(n, 1, t) * db.fixed("c", {t}, 0.5)):sum(t) + X:mean(n)
      return x + db.tanh(c) * db.sigmoid(x:mean(d)) + db.select(db.lt(x, 0), x, db.stop_grad(x)) ^ 2
    end)
    db.tap("state." .. layer.index, x)
  end
  local angle = db.constant(db.cos(db.iota(s) * 0.1))
  x = x * db.rsqrt((x * x):mean(d) + 1e-6) + angle * x:rmax(d)
  return db.head_loss(x, db.weight("head", {v, d}, db.normal(0.02)), targets)
end)
