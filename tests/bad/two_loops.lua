-- Two loops that would count the same layers.
local db = require "depthbench"
return db.model(function(ids, targets)
  local first, second = db.layers(), db.layers()
  for a in first do
    for b in second do end -- error: two loops over db.layers at once
  end
  return db.ones()
end)
