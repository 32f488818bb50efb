local db = require "depthbench"
local d = db.axis("d", "wide", 0.5) -- error: axis d: the size must be a whole number of at least 1, not 0.5
