-- The loss must be one number.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
return db.model(function(ids, targets) -- error: the loss must be a single number, f32[]; this one is f32[d]
  return db.ones(d)
end)
