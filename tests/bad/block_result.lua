-- The function of a block forgets to return.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
return db.model(function(ids, targets)
  local x = db.ones(d)
  for layer in db.layers(x) do
    x = layer:block(x, function(x) local y = x * 2 end) -- error: layer:block: the function must return the layer's result
  end
  return x:sum(d)
end)
