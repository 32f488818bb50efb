local t = {}
while true do
  t[#t + 1] = string.rep("x", 100000) .. #t -- error: the script needs more than 256 MB of memory
end
