-- Merges of axes that are not neighbours, and more axes than a value can have.
local db = require "depthbench"
local n, d, f = db.axis("n", "small", 2), db.axis("d", "wide", 3), db.axis("f", "wide", 6)
local a = {}
for i = 1, 9 do a[i] = db.axis("a" .. i, "small", 2) end

return db.model(function(ids, targets)
  local x = db.ones(n, d)
  local y = x:merge(d, n, f) -- error: merge: d,n are not neighbours, in this order, in f32[n,d]
  local z = db.ones(a[1], a[2], a[3], a[4], a[5], a[6]) * db.ones(a[7], a[8])
  z = z * db.ones(a[9]) -- error: mul: the result would have more than 8 axes
  return z
end)
