local function round() return round() end -- error: the script runs too long
local function again()
  return again()
end
round()
