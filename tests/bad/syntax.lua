-- Not Lua.
local db = require "depthbench"
return db.model(function(ids, targets)
  local x = db.ones( -- the closing parenthesis is missing
  return x -- error: unexpected symbol near 'return'
end)
