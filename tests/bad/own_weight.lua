-- A weight that its own initial value declares.
local db = require "depthbench"
local d = db.axis("d", "wide", 8)
local w = db.weight("w", {d}, function() db.weight("w", {d}, 0) return 1 end) -- error: weight 'w': its own initial value declares it
