std = "lua54"
ignore = {"431"} -- a block's argument may have the name of the state it stands for
