-- A layer that is used after its loop would make weights without a layer.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
return db.model(function(ids, targets)
  local x, kept = db.ones(d), nil
  for layer in db.layers() do kept = layer end
  x = kept:block(x, function(x) return x * db.weight("w", {d}, 1) end) -- error: layer:block: the loop is not at this layer
  return x:sum(d)
end)
