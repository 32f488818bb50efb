-- Every kind of op, each wrong in one way; what follows a mistake is silent.
local db = require "depthbench"
local b, s = db.axis "b", db.axis "s"
local d, f, n = db.axis("d", "wide", 8), db.axis("f", "wide", 12), db.axis("n", "small", 2)
local t, p = db.axis("t", "small", 3), db.axis("p", "small", 4)

local function helper(x)
  return x:dot(db.weight("up", {f}, 0)) -- error: dot: no shared axis: left is f32[n,d], right is f32[f]
end

return db.model(function(ids, targets)
  local x = db.ones(n, d)
  local bad = helper(x)
  bad = bad * 2 + x:dot(bad):sum(f)
  local y = x + ids -- error: add: operand i32[b,s] is i32, expected f32
  y = db.exp(ids) -- error: exp: operand i32[b,s] is i32, expected f32
  y = x:sum(f) -- error: sum: the operand f32[n,d] has no axis f
  y = x:mean(d, d) -- error: sum: axis d twice
  y = x:slice(n, 2) -- error: slice: 2..2 is outside of axis n, which has size 2
  y = x:split(d, t, p) -- error: split: d has size 8, but t,p multiply to 12
  y = x:split(d, n, p) -- error: split: the operand f32[n,d] already has axis n
  y = x:split(d, p, p) -- error: split: axis p twice
  y = (x * db.ones(t)):merge(n, d, f) -- error: merge: f has size 12, but n,d multiply to 16
  y = x:merge(t, d, f) -- error: merge: the operand f32[n,d] has no axis t
  y = db.stack(n, x:slice(n, 0)) -- error: concat: the parts add up to 1, but axis n has size 2
  y = db.stack(n, x, x) -- error: concat: the operand f32[n,d] already has axis n
  y = db.stack(n, db.ones(d), db.ones(t)) -- error: concat: the parts have different axes: f32[d] and f32[t]
  y = db.constant(db.weight("w", {d}, 1)) -- error: constant: the operand depends on an input or a parameter
  return y
end)
