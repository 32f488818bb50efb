-- Weights declared twice with other axes, and with axes that a weight cannot have.
local db = require "depthbench"
local d, f, s = db.axis("d", "wide", 8), db.axis("f", "wide", 12), db.axis "s"

return db.model(function(ids, targets)
  local w = db.weight("proj", {d, f}, 0)
  w = db.weight("proj", {d, f}, 0)
  w = db.weight("proj", {f, d}, 0) -- error: weight proj was declared before with other axes: f32[d,f] at tests/bad/weights.lua:6, f32[f,d] here
  w = db.weight("positions", {s, d}, 0) -- error: weight positions: row axis s cannot be in a trained parameter
  for layer in db.layers() do
    w = db.weight("proj", {d}, 0)
    if layer.index == 1 then
      w = db.weight("proj", {d, f}, 0) -- error: weight layers.1.proj was declared before with other axes: f32[d] at tests/bad/weights.lua:11, f32[d,f] here
    end
  end
  return db.ones()
end)
