-- A mistake of the graph, then a Lua error: both are shown.
local db = require "depthbench"
local d, f = db.axis("d", "wide", 8), db.axis("f", "wide", 12)
return db.model(function(ids, targets)
  local x = db.ones(d):sum(f) -- error: sum: the operand f32[d] has no axis f
  return x:summ(d) -- error: a value has no summ; did you mean sum?
end)
