-- More mistakes than are shown.
local db = require "depthbench"
local d, f = db.axis("d", "wide", 8), db.axis("f", "wide", 12)

return db.model(function(ids, targets)
  for i = 1, 27 do
    local x = db.ones(d):sum(f) -- error: sum: the operand f32[d] has no axis f
  end
  return db.ones()
end)
