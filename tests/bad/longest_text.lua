local s = ("x"):rep(1e10) -- error: resulting string too large
