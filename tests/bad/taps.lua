-- Work that a call does outside of Lua counts too.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
return db.model(function(ids, targets)
  local x = db.ones(d)
  for i = 1, 1000000 do
    db.tap("t" .. i, x) -- error: the script runs too long
  end
  return x:sum(d)
end)
