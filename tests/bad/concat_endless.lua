-- A length that C would believe: elements without end, made by a function of C.
local t = setmetatable({}, {__index = rawlen})
local s = table.concat(t, "", 1, 1 << 50) -- error: the table functions take tables without __index
