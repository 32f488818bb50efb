local function down(n)
  return 1 + down(n + 1) -- error: stack overflow
end
down(0)
