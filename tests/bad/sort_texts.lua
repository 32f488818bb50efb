-- Few elements, long comparisons.
local t, text = {}, ("x"):rep(1000000)
for i = 1, 1000000 do t[i] = text end
table.sort(t, rawequal) -- error: the script runs too long
