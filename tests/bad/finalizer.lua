-- A finalizer would run where no limit holds.
setmetatable({}, {__gc = function() while true do end end}) -- error: a script's metatables have no __gc
