-- A closing variable cannot hold up the end of a script.
local function endless() while true do end end
local t = setmetatable({}, {__close = endless}) -- error: a script's metatables have no __close
local x <close> = t
