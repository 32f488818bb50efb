-- The metamethod comes after setmetatable has looked.
local mt = {}
local t = setmetatable({}, mt)
mt.__len = function() return 1 << 50 end
table.insert(t, 1, 0) -- error: the table functions take tables without __len
