local s = string.rep("x", 1e9) -- error: the script needs more than 256 MB of memory
