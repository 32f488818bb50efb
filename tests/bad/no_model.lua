local db = require "depthbench" -- error: the script defines no model: return db.model(function(ids, targets) ... end)
local d = db.axis("d", "wide", 8)
