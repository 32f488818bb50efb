-- Each call moves all elements, inside C.
local t = {}
for i = 1, 2000000 do t[i] = i end
while true do
  table.insert(t, 1, 0) -- error: the script runs too long
end
