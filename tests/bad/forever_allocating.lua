local t
while true do t = {1, 2, 3} end -- error: the script runs too long
