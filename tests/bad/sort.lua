-- A long time inside one call of C: the comparison runs in Lua and counts.
local t = {}
for i = 1, 200000 do t[i] = i end
while true do
  table.sort(t, function(a, b) return a > b end) -- error: the script runs too long
end
