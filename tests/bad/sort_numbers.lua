-- A sort without a function of the script's compares inside C.
local t, x = {}, 1
for i = 1, 2000000 do
  x = x * 1103515245 + 12345 & 0x7fffffff
  t[i] = x
end
table.sort(t) -- error: the script runs too long
