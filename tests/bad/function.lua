-- A function that does not exist; the line is the one inside the helper, and its caller is named.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)

local function activation(x)
  local y = db.sillu(x) -- error: depthbench has no sillu; did you mean silu?
  return y
end

return db.model(function(ids, targets)
  return activation(db.ones(d)):sum(d)
end)
