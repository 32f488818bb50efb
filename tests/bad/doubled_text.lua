local s = "x"
while true do
  s = s .. s -- error: the script makes a text of more than 1 MB
end
