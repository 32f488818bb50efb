-- The line that ran, not the one that called it.
local function wait(n)
  local i = 0
  repeat i = i + 1 until i == n -- error: the script runs too long
end
wait(-1)
