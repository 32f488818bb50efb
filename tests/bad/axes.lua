-- Axes: declared twice, too long to be small, of the wrong kind.
local db = require "depthbench"
local d = db.axis("d", "wide", 16)
local again = db.axis("d", "wide", 8) -- error: axis d was declared before with size 16, here its size is 8
local small = db.axis("d", "small", 16) -- error: axis: d is small, d is wide
local many = db.axis("many", "small", 33) -- error: axis many: small axes have at most 32 elements, this one has 33
local n, m, e = db.axis("n", "small", 4), db.axis("m", "small", 3), db.axis("e", "wide", 4)

return db.model(function(ids, targets)
  local x = db.ones(n, d)
  local y = x:rename(n, m) -- error: rename: n has size 4 and m has size 3
  y = x:rename(n, e) -- error: rename: n is small, e is wide
  y = x:rename(m, n) -- error: rename: the operand f32[n,d] has no axis m
  y = x:slice(d, 0, n) -- error: slice: the operand f32[n,d] already has axis n
  y = x:slice(d, 0, m) -- error: slice: d is wide, m is small
  return (x + y):sum(n, d)
end)
