-- A million layers.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
return db.model(function(ids, targets)
  local x = db.ones(d)
  for i = 1, 1000000 do
    x = x + db.silu(x * x) -- error: the model has more than
  end
  return x:sum(d)
end)
