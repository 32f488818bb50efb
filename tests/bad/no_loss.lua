-- The model function forgets to return.
local db = require "depthbench"
return db.model(function(ids, targets) -- error: the model function must return the loss
end)
