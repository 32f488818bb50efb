-- Values that no kernel can walk along.
local db = require "depthbench"
local d, f = db.axis("d", "wide", 8), db.axis("f", "wide", 12)

return db.model(function(ids, targets)
  local w = db.weight("w", {f, d}, db.normal(1))
  local x, y = db.weight("x", {d}, 1), db.weight("y", {f}, 1)
  local z = x * y -- error: mul: f32[d] and f32[f] have different wide axes
  z = w:sum(d) -- error: sum: f32[f,d] would keep wide axis f
  z = w:mean(d) -- error: sum: f32[f,d] would keep wide axis f
  z = w * db.rsqrt(y) -- error: mul: f32[f,d] and f32[f] have different wide axes
  z = db.select(x, w, w) -- error: select: f32[d] and f32[f,d] have different wide axes
  return (w * w):sum(f, d) + z
end)
