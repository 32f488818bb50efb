-- Attention, gather and the head with operands of the wrong shape.
local db = require "depthbench"
local b, s = db.axis "b", db.axis "s"
local d, e, v = db.axis("d", "wide", 8), db.axis("e", "wide", 4), db.axis("v", "wide", 11)
local h, g, u = db.axis("h", "row", 4), db.axis("g", "row", 2), db.axis("u", "row", 3)

return db.model(function(ids, targets)
  local x = db.gather(db.weight("embed", {v, d}, db.normal(0.02)), ids)
  local q = x:dot(db.weight("q", {e, d}, 0)) * db.ones(h)
  local k = x:dot(db.weight("k", {e, d}, 0)) * db.ones(g)
  local o = db.attention(q, k, k * db.ones(h)) -- error: attention: k and v have different axes
  o = db.attention(q, x, x) -- error: attention: q and k have different axes
  o = db.attention(x, x, x) -- error: attention: q has the rows b,s and one axis of heads
  o = db.attention(k, k:slice(g, 0) * db.ones(u), k:slice(g, 0) * db.ones(u)) -- error: attention: the number of query heads
  o = db.gather(x, ids) -- error: gather: the table does not have two axes
  o = db.gather(db.weight("embed", {v, d}), x) -- error: gather: the ids are not integers
  o = db.gather(db.weight("embed", {v, d}), targets) -- error: gather: the ids are targets, which may be negative
  o = db.gather(db.weight("few", {e, d}, 0), ids) -- error: gather: axis e has size 4, less than the vocabulary of 11
  o = db.gather(db.weight("thin", {v, db.axis("p", "small", 2)}, 0), ids) -- error: gather: the axes of the table are not wide
  o = db.head_loss(x, db.weight("few", {e, d}), targets) -- error: head_loss: axis e has size 4, less than the vocabulary of 11
  o = db.head_loss(x, db.weight("head", {v, e}, 0), targets) -- error: head_loss: the last axis of x is not that of the weight
  o = db.head_loss(x:sum(s), db.weight("embed", {v, d}), targets) -- error: head_loss: the last axis of x
  o = db.head_loss(x, db.weight("embed", {v, d}), x) -- error: head_loss: targets are not integers
  return o
end)
